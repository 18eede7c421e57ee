"""What an error tells a program, beside its words."""

from __future__ import annotations

import pickle

from twopc.errors import RecordRefused


def test_a_refused_record_says_where_it_is_as_far_as_that_is_known() -> None:
    refused = RecordRefused("it is null", record=2, column="topic")
    assert str(refused) == "record 2, column 'topic': it is null"
    refused.locate("orders", task=3, before=10)
    assert str(refused) == "sink 'orders', task 3, record 12, column 'topic': it is null"
    assert (refused.topic, refused.partition) == (None, None)
    assert str(RecordRefused("it is null")) == "it is null"


def test_a_refused_record_of_no_known_position_has_none_when_it_is_located() -> None:
    refused = RecordRefused("the brokers refuse it", topic="a", partition=0)
    refused.locate("orders", task=0, before=10)
    assert refused.record is None
    assert str(refused) == "sink 'orders', task 0, topic 'a', partition 0: the brokers refuse it"


def test_a_refused_record_is_the_same_in_another_process() -> None:
    refused = RecordRefused("it is null", sink="orders", record=2)
    arrived = pickle.loads(pickle.dumps(refused))  # noqa: S301  # its own
    assert (type(arrived), str(arrived), vars(arrived)) == (RecordRefused, str(refused), vars(refused))
