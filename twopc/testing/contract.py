"""The contract of a sink as tests. Authors of plugins subclass ``SinkContract`` and implement two methods."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import reprlib
import sys
import tempfile
import threading
import time
import unittest
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from twopc.checks import CheckStatus
from twopc.commits import calls_of
from twopc.errors import LogMismatch, OperatorRequired, Refused, Retriable, RoundAborted
from twopc.participant import Participant
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.testing.kills import Choice, killed_at_each_step
from twopc.testing.query import FIRST_ROUND, Query, error_of
from twopc.transaction import Committable
from twopc.transactional_ids import BATCH_SLOTS, Round

LOG_ID = "contract"
SINK = "a_sink"

NEIGHBORS = (
    (SINK, "another"),
    (SINK, f"{LOG_ID}2"),
    (f"{SINK}2", LOG_ID),
    ("a-sink", LOG_ID),  # matches SINK in a LIKE, where _ is any character
)
"""The sink name and log id of other queries, or of other sinks in the same query. Their names begin like those of the
sink under test."""

AWKWARD = (
    *("", " ", "null", "NaN", "0", "%s {0}", "a,b;c\td", "back\\slash", "line\nbreak"),
    *('it\'s "quoted"', "Grüße, 世界 🐎"),
)

EXAMPLES = "TWOPC_EXAMPLES"
"""The environment variable that replaces ``examples``."""

KILLS_AMID_BAD_RECORDS = 15
"""Fewer than ``kills``, because the other steps are those of a batch without bad records."""

LONG_TEXTS = tuple(f"{'é' * (length - 1)}{end}" for length in (256, 4_001, 65_536) for end in "ab")
"""Each is one character longer than a usual limit. Two of each length differ only in the last character."""

WorkT = TypeVar("WorkT")


class Lost(Exception):
    """Fails a task attempt."""


class SinkContract(ABC):
    """Tests for every sink, whatever its target system. pytest collects them in a subclass whose name starts with Test.

    Each test calls ``make_sink`` several times. The sinks share one target system, as processes do, and a new sink
    stands for a process that knows nothing of the process that wrote.

    Tests read records only when their batch is complete and no transaction is open, because a target system may show
    commits in the order in which their transactions began, or only whole batches.
    """

    picklable: bool = True
    """Whether a sink can be pickled, and reaches the target system from another process. False only if the target
    system is in this process, for example in its memory: then no sink is pickled, and no process is killed."""

    patience_s: float = 30.0
    """How long a call that raises ``Retriable`` is repeated before the test fails. In tests with kills, each process
    has this long for all its calls, plus a minute."""

    kills: int = 40
    """The most processes that a test kills, each at a different step of a batch. ``TWOPC_KILLS`` in the environment may
    lower it, and choose other steps in each run (``twopc.testing.kills.FEW``)."""

    examples: int = 100
    """How many values are drawn per column, besides the edge values of its type; at most 20 if the sink refuses some of
    them. ``TWOPC_EXAMPLES`` in the environment overrides it."""

    large: int = 10_000
    """How many records the large write contains. Lower it if the target system can't hold that many at once."""

    shows_whole_transactions: bool = True
    """Whether readers never see a part of a transaction. Set it to False if they may, for example because a transaction
    has several files. The sink's users must know this."""

    finds_lost_batches: bool = False
    """Whether ``open`` compares ``last_committed_batch_id`` with the target system, which shows the sink's newest
    batch."""

    # What a subclass implements. -------------------------------------------------------------------------------

    @abstractmethod
    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        """Return a new sink on the target system of the current test."""

    @abstractmethod
    def visible(self) -> list[str]:
        """Return what a committed reader of the target system sees: the ``value`` of every record, in any order."""

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        """Return records for the sink. Override it if the sink needs columns other than ``value``. Values are short,
        except ``long_texts``, and all values that are open or visible at the same time are different."""
        return pa.record_batch({"value": pa.array(values)})

    def sample(self) -> pa.RecordBatch:
        """Return records that are easily damaged. Override it, together with ``visible_records``, to cover every column
        and type that the sink takes, with nulls."""
        return self.record_batch([*AWKWARD, None])  # type: ignore[list-item]  # a subclass may expect text alone

    def visible_records(self) -> list[dict[str, Any]] | None:
        """Return what a committed reader sees of ``sample``, in the form of its ``to_pylist``. None: compare
        ``visible`` with the column ``value``."""
        return None

    def types_taken(self) -> pa.Schema | None:
        """Return the columns for which values are drawn, by default the columns of ``sample``; None to draw texts for
        ``value``. Leave out a column if the sink refuses most values of its type by design. The test that draws values
        calls this first, so it may create the target system's table again."""
        self.sink()  # it may create the table
        return None if self.visible_records() is None else self.sample().schema

    def readers(self) -> Mapping[str, Callable[[], Sequence[Mapping[str, Any]]]]:
        """Return the readers of the drawn records, by name. Override it to compare several readers."""
        return {"a committed reader": lambda: self.visible_records() or []}

    def with_bad_records(self) -> pa.RecordBatch | None:
        """Return records of which the sink refuses only some. None, the default, if the sink never refuses single
        records. Such a sink need not override ``write_valid``."""
        return None

    def long_texts(self) -> Sequence[str]:
        """Return values that a target system may truncate. Override it to return none if values are not text."""
        return LONG_TEXTS

    def leftovers(self) -> Sequence[str] | None:
        """Name the remains of transactions in the target system, such as pending rows and temporary files, but not
        visible records and commit markers. None, the default, if the test can't see them."""
        return None

    @contextlib.contextmanager
    def silent_sink(self) -> Iterator[TwoPhaseCommitSink[Any] | None]:
        """Yield a new sink whose target system does not answer, for example at a closed port. Within the
        context, the target system need not answer any sink. Yields None, the default, if the test can't silence it."""
        yield None

    def becomes_visible(self, values: list[str]) -> bool:
        """Return whether exactly ``values`` are visible. Override it to wait if the target system shows commits
        late."""
        return Counter(self.visible()) == Counter(values)

    # What is written. -------------------------------------------------------------------------------------------

    def test_what_is_written_and_pre_committed_is_not_visible(self) -> None:
        self.query().pre_committed(self.record_batch(["a", "b"]))
        assert self.visible() == []

    def test_a_transaction_has_the_records_of_every_write(self) -> None:
        query = self.query()
        written = [self.record_batch(values) for values in (["a"], ["b", "c"], [], ["d"])]
        committable = query.pre_committed(*written)
        assert committable.records == 4
        query.publish(committable)
        self._require_visible(["a", "b", "c", "d"])

    def test_a_slice_of_a_record_batch_is_written_without_the_rest(self) -> None:
        query = self.query()
        whole = self.record_batch(["a", "b", "c", "d"])
        committable = query.pre_committed(whole.slice(1, 2), whole.slice(3))
        query.publish(committable)
        self._require_visible(["b", "c", "d"])

    def test_a_record_is_refused_or_read_back_as_it_was_written(self) -> None:
        """A sink may refuse a value with ``Refused``, but must not change it."""
        query, written = self.query(), self._taken_of_sample()
        query.publish(query.pre_committed(written.slice(0, 1), written.slice(1), round=Round(2, 0)))
        self._require_records(written)

    def test_columns_that_come_in_another_order_keep_their_values_or_are_refused(self) -> None:
        query, written = self.query(), self._taken_of_sample()
        if written.num_columns == 1:
            raise unittest.SkipTest("records have one column")
        turned = written.slice(1).select([*reversed(written.schema.names)])
        try:
            committable = query.pre_committed(written.slice(0, 1), turned, round=Round(2, 0))
        except (Refused, RoundAborted):
            assert self.visible() == []
        else:
            query.publish(committable)
            self._require_records(written)

    def _taken_of_sample(self) -> pa.RecordBatch:
        """Return the records of the sample that the sink takes."""
        sample = self.sample()
        taken = [row for row in range(sample.num_rows) if self._is_taken(sample.slice(row, 1), partition=row)]
        assert taken, "the sink has refused every record of the sample"
        return sample.take(pa.array(taken, pa.int64()))

    def _require_records(self, written: pa.RecordBatch) -> None:
        records = self.visible_records()
        if records is None:
            self._require_visible(written["value"].to_pylist())
        else:
            assert _without(records, written.to_pylist()) == _without(written.to_pylist(), records) == []

    def test_a_long_text_is_refused_or_read_back_whole(self) -> None:
        query, texts = self.query(), self.long_texts()
        if not texts:
            raise unittest.SkipTest("a value is no text")
        taken = [text for row, text in enumerate(texts) if self._is_taken(self.record_batch([text]), partition=row)]
        if taken:
            committable = query.pre_committed(self.record_batch(taken), round=Round(2, 0))
            query.publish(committable)
        self._require_visible(taken)

    def test_every_record_of_a_large_write_is_read_back(self) -> None:
        query = self.query()
        values = [f"{number}" for number in range(self.large)]
        most = self.large - self.large // 10
        committable = query.pre_committed(self.record_batch(values[:most]), self.record_batch(values[most:]))
        assert committable.records == self.large
        query.publish(committable)
        self._require_visible(values)

    def _is_taken(self, record: pa.RecordBatch, partition: int) -> bool:
        query = self.query()
        try:
            committable = query.pre_committed(record, partition=partition)
        except Refused:
            return False
        query.abort(committable)
        return True

    def test_records_that_are_refused_are_left_out_one_by_one_and_the_others_are_written_once(self) -> None:
        records, good, bad = self._good_and_bad()
        query, sink = self.query(), self.sink()
        query.answered(sink.require_valid, records.schema)
        with query.sent(sink, Round(2, 0), max_bad_records=2 * len(bad)) as participant:
            first = participant.write(SINK, records.take(pa.array(bad)))  # a transaction may begin with a bad record
            second = participant.write(SINK, records)
            committable = query.sealed(participant)
        assert sorted(each.record for each in first if each.record is not None) == list(range(len(bad)))
        assert sorted(each.record for each in second if each.record is not None) == bad
        assert committable.records == len(good)
        query.publish(committable)
        self._require_visible(records.take(pa.array(good))["value"].to_pylist())

    def test_a_transaction_of_bad_records_alone_is_rolled_back_and_no_vote_has_it(self) -> None:
        records, _, bad = self._good_and_bad()
        query, sink = self.query(), self.sink()
        query.answered(sink.require_valid, records.schema)
        with query.sent(sink, Round(2, 0), max_bad_records=len(bad)) as participant:
            participant.write(SINK, records.take(pa.array(bad)))
            assert participant.pre_commit() == {}
        self._require_nothing_open(query)

    def _good_and_bad(self) -> tuple[pa.RecordBatch, list[int], list[int]]:
        """Return records, the positions of the records that the sink takes, and the positions of the records that it
        refuses."""
        records = self.with_bad_records()
        if records is None:
            raise unittest.SkipTest("the sink refuses no record by itself")
        rows = range(records.num_rows)
        bad = [row for row in rows if not self._is_taken(records.slice(row, 1), partition=row)]
        assert bad, "the sink has taken every record"
        return records, [row for row in rows if row not in bad], bad

    def test_a_column_that_validate_accepts_can_be_written(self) -> None:
        sink = self.sink()
        if type(sink).validate is TwoPhaseCommitSink.validate:
            return  # the sink does not validate
        query = self.query()
        batch = self.record_batch(["a"]).append_column("of_the_contract", pa.array(["b"]))
        try:
            query.answered(sink.validate, batch.schema)
        except Refused:
            return
        committable = query.pre_committed(batch)
        query.publish(committable)
        self._require_visible(["a"])

    def test_a_schema_is_validated_before_the_sink_is_bound(self) -> None:
        """A coordinator validates before it opens its log, and so before it binds the sink."""
        query, records = self.query(), self.record_batch(["a"])
        sink = self.make_sink()
        query.answered(sink.require_valid, records.schema)
        sink.bind(SINK, LOG_ID)
        query.answered(sink.open)
        with query.sent(sink) as participant:
            participant.write(SINK, records)
            committable = query.sealed(participant)
        query.publish(committable)
        self._require_visible(["a"])

    def test_a_committable_is_small_and_survives_a_round_trip_through_json(self) -> None:
        committable = self.query().pre_committed(self.record_batch([f"{number}" for number in range(1000)]))
        assert len(json.dumps(committable.to_json())) < 2000
        assert committable.records == 1000

    def test_a_sink_travels_to_a_participant(self) -> None:
        self._require_other_processes()
        sink = self.sink()
        twin = pickle.loads(pickle.dumps(sink))  # noqa: S301  # our own bytes
        assert twin.transactional_ids == sink.transactional_ids

    # Commit. ----------------------------------------------------------------------------------------------------

    def test_another_process_commits_what_one_pre_committed(self) -> None:
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a", "b"]))
        query.publish(committable)
        self._require_visible(["a", "b"])

    def test_a_commit_publishes_its_own_transaction_alone(self) -> None:
        self._require_commits_of_transactions()
        query = self.query()
        first, second, third = self._pre_committed("abc")
        records = self.record_batch(["d"])
        with query.participant(records.schema, partition=3) as late:
            late.write(SINK, records)
            query.commit(second)
            assert set(self.visible()) <= {"b"}
            query.commit(third, first)
            assert set(self.visible()) <= {"a", "b", "c"}
            late.write(SINK, self.record_batch(["e"]))
            last = query.sealed(late)
        query.commit(last)
        query.complete(0, first, second, third, last)
        self._require_visible(["a", "b", "c", "d", "e"])

    def test_commits_from_many_threads_publish_each_transaction_once(self) -> None:
        """A coordinator commits the transactions of a batch from several threads, through one sink."""
        self._require_commits_of_transactions()
        query = self.query()
        committables = self._pre_committed("abcdefgh")
        sink = query.sink()
        _all_at_once(lambda committable: query.answered(sink.commit, committable), committables)
        query.complete(0, *committables)
        self._require_visible([*"abcdefgh"])

    def test_what_is_reported_as_committed_at_once_is_visible_and_every_other_can_be_committed(self) -> None:
        self._require_commits_of_transactions()
        query = self.query()
        sink, committables = query.sink(), self._pre_committed("abcdefgh")
        committed = set(query.answered(sink.commit_many, committables))
        assert committed <= {*map(_name, committables)}
        left = [each for each in committables if _name(each) not in committed]
        query.commit(*left)
        query.complete(0, *committables)
        self._require_visible([*"abcdefgh"])

    def test_coordinators_that_commit_at_once_publish_each_transaction_once(self) -> None:
        """A coordinator that was replaced may still be committing. Only the newest one's errors count."""
        query = self.query()
        committables = self._pre_committed("abc")
        calls = [call for sink in (query.sink(), query.sink()) for call in calls_of(sink, 0, committables)]
        _all_at_once(lambda call: error_of(query.answered, call.commit), calls)
        query.publish(*committables)
        self._require_visible([*"abc"])

    def test_a_repeated_commit_changes_nothing(self) -> None:
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a", "b"]))
        for _ in range(3):
            query.publish(committable)
        self._require_visible(["a", "b"])

    def test_a_commit_is_repeated_after_complete_and_a_restart(self) -> None:
        """Until the next batch is decided, the log does not record that this one is complete."""
        query = self.query()
        first = query.pre_committed(self.record_batch(["a"]), round=Round(1, 0))
        query.publish(first)
        second = query.pre_committed(self.record_batch(["b"]), round=Round(1, 1))
        query.publish(first)
        for _ in range(2):
            query.publish(second, batch_id=1)
        self._require_visible(["a", "b"])

    def test_an_announcement_is_repeated_after_a_restart_and_changes_no_record(self) -> None:
        """The log may not yet record that a batch is complete. Then the next process announces it again."""
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a"]))
        query.publish(committable)
        for _ in range(2):
            query.announce(0, committable)
        query.announce(1)
        self._require_visible(["a"])

    def test_a_batch_without_transactions_is_completed(self) -> None:
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a"]))
        query.publish(committable)
        for _ in range(2):
            query.complete(1)
        self._require_visible(["a"])

    def test_a_commit_of_what_was_rolled_back_calls_an_operator(self) -> None:
        """The transaction is lost. A success would hide that, and ``Retriable`` would repeat the commit forever."""
        query = self.query()
        [first] = self._pre_committed("a", Round(1, 0))
        [lost] = self._pre_committed("c", Round(1, 1))
        query.abort(lost)
        query.publish(first)
        error = error_of(lambda: query.commit(lost, batch_id=1))
        assert isinstance(error, OperatorRequired), f"the commit of what was rolled back: {error!r}"
        self._require_visible(["a"])

    def test_a_batch_that_has_lost_a_transaction_is_not_committed_in_part(self) -> None:
        """Applies if the sink commits whole batches."""
        self._require_commits_of_batches()
        query = self.query()
        committables = self._pre_committed("abc")
        query.abort(committables[1])
        error = error_of(query.commit, *committables)
        assert isinstance(error, OperatorRequired), f"the commit of what was rolled back in part: {error!r}"
        self._require_visible([])

    def test_a_batch_becomes_visible_alone(self) -> None:
        """If the sink commits whole batches, transactions of other batches that are pre-committed stay invisible."""
        self._require_commits_of_batches()
        query = self.query()
        first = self._pre_committed("ab", Round(1, 0))
        second = self._pre_committed("cd", Round(1, 1))
        query.commit(*first)
        self._require_visible(["a", "b"])
        query.complete(0, *first)
        query.commit(*second, batch_id=1)
        query.complete(1, *second)
        self._require_visible(["a", "b", "c", "d"])

    def test_whatever_a_joint_commit_has_done_each_sinks_own_makes_its_batch_visible_once(self) -> None:
        """Applies if one request can make a batch of several sinks visible. That request is made before all, some or
        none of the sinks' own commits, and again after all of them."""
        queries = [self.query(), self.query(f"{SINK}2")]
        expected: list[str] = []
        for batch_id, (committed_before, values) in enumerate([(0, "ab"), (1, "cd"), (2, "ef")]):
            work = [
                (query, query.pre_committed(self.record_batch([value]), round=Round(1, batch_id)))
                for query, value in zip(queries, values, strict=True)
            ]
            sinks = [sink for query in queries if isinstance(sink := query.sink(), WholeBatchSink)]
            groups = {sink.commit_group for sink in sinks}
            if len(groups) != 1 or None in groups:
                raise unittest.SkipTest("the sink is committed alone")
            due = dict(zip(sinks, ([committable] for _, committable in work), strict=True))
            together = type(sinks[0]).commit_together
            for query, committable in work[:committed_before]:
                query.commit(committable, batch_id=batch_id)
            error_of(together, batch_id, due)
            for query, committable in work:
                query.commit(committable, batch_id=batch_id)
            error_of(together, batch_id, due)
            for query, committable in work:
                query.complete(batch_id, committable)
            expected += values
        self._require_visible(expected)

    def test_a_late_commit_of_an_older_batch_changes_nothing(self) -> None:
        """A coordinator that was replaced wakes up in the middle of its call."""
        query = self.query()
        [first] = self._pre_committed("a", Round(1, 0))
        [second] = self._pre_committed("b", Round(1, 1))
        query.publish(first)
        query.publish(second, batch_id=1)
        error_of(query.commit, first)
        self._require_visible(["a", "b"])

    def test_what_is_late_for_a_committed_transaction_leaves_a_newer_one_alone(self) -> None:
        query = self.query()
        first = query.pre_committed(self.record_batch(["a"]), round=Round(1, 0))
        query.publish(first)
        for batch_id in range(1, BATCH_SLOTS):
            query.complete(batch_id)
        second = query.pre_committed(self.record_batch(["b"]), round=Round(9, BATCH_SLOTS))  # maybe of the same name
        error_of(query.commit, first)
        error_of(query.abort, first)
        self._require_visible(["a"])
        [found] = query.recover()
        assert found.is_same_transaction(second)
        assert not found.is_same_transaction(first)
        query.publish(second, batch_id=BATCH_SLOTS)
        self._require_visible(["a", "b"])

    def test_seal_returns_the_transactions_that_it_is_given(self) -> None:
        query = self.query()
        committables = self._pre_committed("abc")
        sink = query.sink()
        for given in (committables, committables[::-1], []):
            sealed = query.answered(sink.seal, given, 0.0)
            assert [one.transaction_id for one in sealed] == [one.transaction_id for one in given]
            assert all(one.is_same_transaction(other) for one, other in zip(sealed, given, strict=True))

    # Several attempts of one partition, as Spark makes after it has lost an executor or finds one slow. ---------------

    def test_an_attempt_that_stays_open_adds_nothing_to_the_one_that_votes(self) -> None:
        query = self.query()
        with contextlib.suppress(Lost), self._attempt("a", serial=5):
            second = query.pre_committed(self.record_batch(["b"]), serial=7)
            query.publish(second)
            query.sweep()
            raise Lost
        self._require_nothing_open(query)
        self._require_visible(["b"])

    def test_an_attempt_that_is_rolled_back_late_takes_nothing_from_another_of_its_partition(self) -> None:
        """The rollback comes before or after the other's commit, from the participant or from the coordinator."""
        query = self.query()
        for batch_id, (late, kept) in enumerate([("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]):
            round, is_after, by_name = Round(1, batch_id), batch_id % 2, batch_id // 2
            with contextlib.suppress(Lost), self._attempt(late, round, serial=5) as first:
                voted = query.sealed(first) if by_name else None
                second = query.pre_committed(self.record_batch([kept]), round=round, serial=7)
                if is_after:
                    query.commit(second, batch_id=batch_id)
                if voted:
                    query.abort(voted)
                else:
                    raise Lost
            query.publish(second, batch_id=batch_id)
        self._require_nothing_open(query)
        self._require_visible([*"bdfh"])

    def test_an_attempt_that_begins_late_takes_nothing_from_the_one_that_has_voted(self) -> None:
        query = self.query()
        first = query.pre_committed(self.record_batch(["a"]), serial=5)
        with contextlib.suppress(Lost), self._attempt("b", serial=7):
            assert any(map(first.is_same_transaction, query.recover())), "the attempt that has voted is gone"
            query.commit(first)
            raise Lost
        query.complete(0, first)
        self._require_nothing_open(query)
        self._require_visible(["a"])

    # Abort. -----------------------------------------------------------------------------------------------------

    def test_an_aborted_transaction_never_becomes_visible_and_is_not_recovered(self) -> None:
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a"]))
        for _ in range(2):
            query.abort(committable)
        assert self.visible() == []
        self._require_nothing_open(query)

    def test_an_abort_rolls_back_its_own_transaction_alone(self) -> None:
        query = self.query()
        first, second, third = self._pre_committed("abc")
        records = self.record_batch(["d"])
        with contextlib.suppress(Lost), query.participant(records.schema, partition=3) as failing:
            failing.write(SINK, records)
            raise Lost
        query.abort(second)
        found = query.recover()
        assert sorted(map(_name, found)) == sorted(map(_name, (first, third)))
        query.publish(first, third)
        self._require_visible(["a", "c"])

    def test_an_abort_of_what_is_committed_takes_nothing_back(self) -> None:
        """An operator's tool may have listed the transaction before its commit."""
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a"]))
        query.commit(committable)
        error_of(query.abort, committable)
        query.publish(committable)
        self._require_visible(["a"])

    def test_a_late_abort_of_an_old_transaction_leaves_a_newer_one_of_the_same_name_alone(self) -> None:
        query = self.query()
        first = query.pre_committed(self.record_batch(["a"]), round=Round(1, 0))
        query.abort(first)
        second = query.pre_committed(self.record_batch(["b"]), round=Round(9, 0))
        error_of(query.abort, first)
        query.publish(second)
        self._require_visible(["b"])

    def test_a_participant_that_fails_leaves_nothing_open(self) -> None:
        query = self.query()
        with contextlib.suppress(Lost), self._writing("a"):
            raise Lost
        self._require_nothing_open(query)
        assert self.visible() == []

    def test_a_participant_that_fails_after_its_vote_is_rolled_back(self) -> None:
        """Another sink's vote was no."""
        query = self.query()
        with contextlib.suppress(Lost), self._writing("a") as participant:
            participant.pre_commit()
            raise Lost
        query.sweep()
        self._require_nothing_open(query)
        assert self.visible() == []

    def test_a_transaction_without_a_record_is_rolled_back(self) -> None:
        """This is the state after a failed first write."""
        query = self.query()
        sink = query.sink()
        query.answered(sink.require_valid, self.record_batch(["a"]).schema)  # as a participant does before each begin
        transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), partition=0))
        query.answered(sink.discard, transaction)
        self._require_nothing_open(query)
        assert self.visible() == []

    def test_a_writer_that_was_rolled_back_does_not_vote_for_a_part(self) -> None:
        """The writer may vote no, or ``seal`` may veto its vote. Or the target system did not know the transaction yet,
        and then all of its records count."""
        query = self.query()
        expected: list[str] = []
        for batch_id, (before, after) in enumerate((("a", ""), ("b", "c"))):
            decided: list[Committable] = []
            with contextlib.suppress(Lost), self._writing(before, Round(1, batch_id)) as writer:
                query.sweep()
                try:
                    if after:
                        writer.write(SINK, self.record_batch([after]))
                    decided.append(query.sealed(writer))
                except Exception as error:
                    raise Lost from error
                expected += [*before, *after]
            query.commit(*decided, batch_id=batch_id)
            query.complete(batch_id, *decided)
            query.sweep()
        self._require_visible(expected)
        assert not self.leftovers(), f"left over: {self.leftovers()}"

    def test_nothing_is_left_of_transactions_that_have_ended(self) -> None:
        query = self.query()
        first, second, third = self._pre_committed("abc")
        with contextlib.suppress(Lost), self._writing("d", Round(1, 1)):
            raise Lost
        query.abort(third)
        query.publish(first, second)
        query.complete(1)
        query.sweep()
        if (left := self.leftovers()) is None:
            raise unittest.SkipTest("the test can't see what is left")
        assert not left, f"left over: {left}"

    # Recovery. --------------------------------------------------------------------------------------------------

    def test_recover_finds_what_is_open_whoever_began_it(self) -> None:
        committables = self._pre_committed("abc")
        found = self.query().recover()
        assert len(found) == len(committables)
        for committable in committables:
            assert [committable.is_same_transaction(open_) for open_ in found].count(True) == 1

    def test_recover_only_lists(self) -> None:
        query = self.query()
        committables = self._pre_committed("ab")
        assert sorted(map(_name, query.recover())) == sorted(map(_name, query.recover()))
        query.publish(*committables)
        self._require_visible(["a", "b"])

    def test_recover_finds_what_is_not_pre_committed_yet(self) -> None:
        """``recover`` may miss a transaction that the target system does not know of yet. The target system knows of it
        if an abort by name makes the vote fail."""
        query = self.query()
        transaction_id = query.sink().transactional_ids.allocate(Round(1, 0), partition=0)
        with contextlib.suppress(Lost), self._writing("a") as writer:
            if query.recover() or error_of(query.abort, Committable(transaction_id.exact, {})):
                raise Lost
            error = error_of(writer.pre_commit)
            assert error is None, f"recover did not list a transaction that the target system rolled back: {error!r}"
            raise Lost
        query.sweep()
        self._require_nothing_open(query)
        assert self.visible() == []

    def test_what_recover_finds_can_be_aborted(self) -> None:
        query = self.query()
        self._pre_committed("ab")
        query.sweep()
        self._require_nothing_open(query)
        assert self.visible() == []

    def test_recover_leaves_out_what_is_committed(self) -> None:
        query = self.query()
        committable = query.pre_committed(self.record_batch(["a"]))
        query.publish(committable)
        self._require_nothing_open(query)

    def test_no_answer_is_neither_a_success_nor_a_loss(self) -> None:
        query = self.query()
        [committable] = self._pre_committed("a")
        other = query.pre_committed(self.record_batch(["b"]), partition=1)
        with self.silent_sink() as sink:
            if sink is None:
                raise unittest.SkipTest("the test can't silence the target system")
            sink.bind(SINK, LOG_ID)
            [commit] = calls_of(sink, 0, [committable])
            calls: dict[str, Callable[[], object]] = {
                "a commit": commit.commit,
                "an abort": lambda: sink.abort(other),
                "a list of what is open": lambda: [*sink.recover()],
            }
            for what, call in calls.items():
                error = error_of(call)
                assert isinstance(error, Retriable), f"{what} without an answer must be Retriable, and is {error!r}"
        query.abort(other)
        query.publish(committable)
        self._require_visible(["a"])

    # Other queries and sinks on the same target system. ---------------------------------------------------------

    def test_recover_finds_nothing_of_another_query_or_sink(self) -> None:
        for value, (name, log_id) in zip("abcd", NEIGHBORS, strict=True):
            self.query(name, log_id).pre_committed(self.record_batch([value]))
        self._require_nothing_open(self.query())

    def test_one_query_or_sink_ends_nothing_of_another(self) -> None:
        query = self.query()
        neighbors = [self.query(name, log_id) for name, log_id in NEIGHBORS]
        committed = [each.pre_committed(self.record_batch([v])) for each, v in zip(neighbors, "abcd", strict=True)]
        for each, committable in zip(neighbors, committed, strict=True):
            each.commit(committable)
            each.complete(0, committable)
        open_ = [
            each.pre_committed(self.record_batch([value]), round=Round(1, 1))
            for each, value in zip(neighbors, "efgh", strict=True)
        ]
        for batch_id, value in enumerate("ijk"):
            committable = query.pre_committed(self.record_batch([value]), round=Round(1, batch_id))
            query.publish(committable, batch_id=batch_id)
        self._pre_committed("l", Round(1, 3))
        query.sweep()
        for each, first, second in zip(neighbors, committed, open_, strict=True):
            assert list(map(_name, each.recover())) == [second.transaction_id]
            each.commit(first)
            each.commit(second, batch_id=1)
            each.complete(1, second)
        self._require_visible([*"abcdefghijk"])

    # Before and after a query. ----------------------------------------------------------------------------------

    def test_a_query_does_not_start_when_its_last_committed_batch_is_gone(self) -> None:
        """This is the state after the target system was restored from a backup. A pending batch, or a target system
        without any batch of the query, is not a sign of a restore."""
        if not self.finds_lost_batches:
            raise unittest.SkipTest("the target system does not show the sink's newest batch")
        query = self.query()
        query.publish(*self._pre_committed(["a"]))
        query.complete(1)  # which may remove records of older batches

        def start(last: int, pending: Mapping[int, tuple[Committable, ...]], log_id: str = LOG_ID) -> None:
            sink = self.make_sink()
            sink.bind(SINK, log_id)
            sink.last_batch_id, sink.pending = last, pending
            sink.open()

        query.answered(start, 0, {})
        query.answered(start, 1, {1: ()})
        query.answered(start, 1, {}, "another")
        assert isinstance(error_of(start, 1, {}), LogMismatch | Retriable)  # an answer that may be stale is Retriable
        self._require_visible(["a"])

    def test_an_examination_of_a_target_that_works_finds_no_fault_and_leaves_nothing(self) -> None:
        findings = list(self.sink().check())
        assert [finding for finding in findings if finding.result is CheckStatus.FAILED] == []
        self._require_nothing_open(self.query())
        assert self.visible() == []

    def test_a_sink_that_was_closed_can_be_used_again(self) -> None:
        query = self.query()
        batches = [self._pre_committed(value, Round(1, batch_id)) for batch_id, value in enumerate("ab")]
        sink = query.sink()
        for batch_id, committables in enumerate(batches):
            for call in calls_of(sink, batch_id, committables):
                query.answered(call.commit)
            for _ in range(2):
                sink.close()
            query.answered(sink.complete, batch_id, committables)
        assert query.answered(lambda: list(sink.recover())) == []
        self._require_visible(["a", "b"])

    # Values that are drawn. ---------------------------------------------------------------------------------------

    def test_a_value_that_is_drawn_is_refused_or_read_back_as_it_was_written(self) -> None:
        """First come the edge values of each type, then values drawn with a fixed seed."""
        try:
            from twopc.testing import drawn, values
        except ModuleNotFoundError as error:
            raise unittest.SkipTest(f"install {error.name}, which draws the values") from None
        schema, readers = self.types_taken(), self.readers()
        batch_of: Callable[[Sequence[Mapping[str, Any]]], pa.RecordBatch]
        settle: Callable[[Sequence[Mapping[str, Any]]], object] = len  # nothing to wait for
        if schema is not None:
            batch_of = partial(values.batch_of, schema)
        elif self.long_texts():
            schema, batch_of = pa.schema({"value": pa.string()}), self._slice_of_texts
            readers = {"a committed reader": lambda: [{"value": value} for value in self.visible()]}
            settle = self._settle_texts
        else:
            raise unittest.SkipTest("a value is no text")
        table = drawn.Drawn(self.query(), readers, schema, batch_of, "value", settle)
        table.require_unchanged(int(os.environ.get(EXAMPLES, self.examples)))

    def _settle_texts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.becomes_visible([row["value"] for row in rows])

    def _slice_of_texts(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        return self.record_batch(["before", *(row["value"] for row in rows), "after"]).slice(1, len(rows))

    # Processes that are killed. ---------------------------------------------------------------------------------

    def test_a_process_killed_at_any_step_neither_loses_nor_doubles_a_record(self) -> None:
        self._require_other_processes()
        choice = Choice.given(self.kills)
        values = [[[f"{4 * n}", f"{4 * n + 1}"], [f"{4 * n + 2}", f"{4 * n + 3}"]] for n in range(choice.at_most + 1)]
        batches = [[self.record_batch(of_partition) for of_partition in of_batch] for of_batch in values]
        self._require_all_after_kills(choice, batches, values)

    def test_a_process_killed_while_bad_records_are_left_out_writes_every_other_record_once(self) -> None:
        self._require_other_processes()
        records, good, bad = self._good_and_bad()
        choice = Choice.given(min(self.kills, KILLS_AMID_BAD_RECORDS))
        values = [[[f"{number}.{row}" for row in good]] for number in range(choice.at_most + 1)]
        batches = [[_with_values(records, dict(zip(good, of_batch[0], strict=True)))] for of_batch in values]
        self._require_all_after_kills(choice, batches, values, len(bad))

    def _require_all_after_kills(
        self,
        choice: Choice,
        batches: Sequence[Sequence[pa.RecordBatch]],
        values: Sequence[Sequence[Sequence[str]]],
        bad_records: int = 0,
    ) -> None:
        """Kill processes, and require all records afterwards. ``values``: by batch and transaction."""
        sink, steps = self.make_sink(), list[str]()
        with tempfile.TemporaryDirectory() as folder:
            for step in killed_at_each_step(SINK, sink, batches, Path(folder), self.patience_s, choice, bad_records):
                steps.append(step)
                self._require_whole(values[len(steps) - 1], step)
        written = [[*chain(*of_batch)] for of_batch in values[: len(steps)]]
        assert self.becomes_visible([*chain(*written)]), self._killed(steps, written)
        assert not (left := self.leftovers()), f"left over: {left}"

    def _require_whole(self, of_batch: Sequence[Sequence[str]], step: str) -> None:
        """Read between a kill and the next start, and require that no transaction is partly visible. If the sink
        commits whole batches, the batch must not be partly visible either."""
        seen = Counter(self.visible())
        for values in [[*chain(*of_batch)]] if isinstance(self.make_sink(), WholeBatchSink) else of_batch:
            times = {seen[value] for value in values}
            assert times <= {0, 1}, f"a record is visible twice after a kill at {step}"
            if self.shows_whole_transactions:
                assert len(times) == 1, f"a reader sees a part of {values} after a kill at {step}"

    def _killed(self, steps: list[str], written: Sequence[Sequence[str]]) -> str:
        """Describe the kills after which a record is missing or visible twice."""
        seen = Counter(self.visible())
        at = [step for step, values in zip(steps, written, strict=True) if any(seen[value] != 1 for value in values)]
        return f"lost or doubled after a kill at {at}"

    # Shared by the tests. ---------------------------------------------------------------------------------------

    def query(self, name: str = SINK, log_id: str = LOG_ID) -> Query:
        """Return a query that writes to a sink of that name."""
        return Query(self.make_sink, name, log_id, travels=self.picklable, patience_s=self.patience_s)

    def sink(self) -> TwoPhaseCommitSink[Any]:
        """Return a new sink, bound and opened as by a coordinator."""
        return self.query().sink()

    def _require_visible(self, values: list[str]) -> None:
        if not self.becomes_visible(values):
            due, seen = Counter(values), Counter(self.visible())
            few = [[reprlib.repr(value) for value in islice(each, 9)] for each in (due - seen, seen - due)]
            raise AssertionError(
                "of {} records, not visible: {}, and visible without reason: {}".format(len(values), *few)
            )

    def _require_nothing_open(self, query: Query) -> None:
        assert not (found := query.recover()), f"open: {found}"

    def _pre_committed(self, values: Iterable[str], round: Round = FIRST_ROUND) -> list[Committable]:
        """Return one pre-committed transaction per value, each written in ``round`` by a participant that no longer
        exists."""
        return [
            self.query().pre_committed(self.record_batch([value]), round=round, partition=partition)
            for partition, value in enumerate(values)
        ]

    @contextlib.contextmanager
    def _writing(self, value: str, round: Round = FIRST_ROUND) -> Iterator[Participant]:
        """Yield a participant that has written ``value``."""
        records = self.record_batch([value])
        with self.query().participant(records.schema, round) as participant:
            participant.write(SINK, records)
            yield participant

    def _attempt(self, value: str, round: Round = FIRST_ROUND, *, serial: int) -> Participant:
        """Return an attempt at a partition, which has written ``value``. Use the attempt as a context."""
        records = self.record_batch([value])
        attempt = self.query().participant(records.schema, round, serial=serial)
        attempt.write(SINK, records)
        return attempt

    def _require_commits_of_transactions(self) -> None:
        if isinstance(self.make_sink(), WholeBatchSink):
            raise unittest.SkipTest("the sink commits whole batches")

    def _require_commits_of_batches(self) -> None:
        if not isinstance(self.make_sink(), WholeBatchSink):
            raise unittest.SkipTest("the sink commits transaction by transaction")

    def _require_other_processes(self) -> None:
        if not self.picklable:
            raise unittest.SkipTest("no other process can reach the target system")


def _name(committable: Committable) -> str:
    return committable.transaction_id


def _without(records: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``records`` less one equal record for each of ``others``. Records may not be hashable."""
    left = list(records)
    for other in others:
        if other in left:
            left.remove(other)
    return left


def _with_values(records: pa.RecordBatch, values: Mapping[int, str]) -> pa.RecordBatch:
    """Return records with new values. ``values``: position → new value."""
    position, rows = records.schema.get_field_index("value"), range(records.num_rows)
    others = pa.array([values.get(row) for row in rows], records.column(position).type)
    column = pc.if_else(pa.array([row in values for row in rows]), others, records.column(position))
    return records.set_column(position, records.schema.field(position), column)


def _all_at_once(call: Callable[[WorkT], object], work: Sequence[WorkT]) -> None:
    """Call with each of ``work`` in a separate thread. The threads start together, and take turns at every line."""
    start = threading.Barrier(len(work))

    def run(each: WorkT) -> None:
        start.wait()
        before = sys.gettrace()
        sys.settrace(_give_way)
        try:
            call(each)
        finally:
            sys.settrace(before)

    with ThreadPoolExecutor(len(work)) as pool:
        list(pool.map(run, work))


def _give_way(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001  # Python passes three
    time.sleep(0)
    return _give_way
