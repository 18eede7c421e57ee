"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from typing import Any

import pytest

from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer
from twopc import Committable
from twopc_kafka.options import LIBRDKAFKA, WRITERS

pytestmark = [pytest.mark.crash, pytest.mark.long]


def written(topic: Any, prefix: str, writer: str, when: str = AFTER) -> Committable | None:
    options = {"bootstrap.servers": topic.servers, "topic": topic.name, "transactional.id.prefix": prefix}
    return killed_writer("kafka", {**options, "writer": writer}, when)


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    writer: str, topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    committable = written(topic, prefix, writer)
    assert committable is not None
    assert topic.visible() == []
    sink = make_sink(topic)
    [sealed] = sink.seal([committable], age_s=0)
    for _ in range(2):
        wait.repeated(lambda: make_sink(topic).commit(sealed))
    topic.becomes(VALUES)


@pytest.mark.parametrize(("writer", "when"), [(LIBRDKAFKA, BEFORE), *((writer, AFTER) for writer in WRITERS)])
def test_what_a_killed_writer_left_undecided_is_found_and_aborted(
    writer: str, when: str, topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    left = written(topic, prefix, writer, when)
    assert not topic.has_no_open_transaction()
    [found] = make_sink(topic).recover()
    assert left is None or found.is_same_transaction(left)
    wait.repeated(lambda: make_sink(topic).abort(found))
    topic.stays_empty()
    assert list(make_sink(topic).recover()) == []
