"""The contract of a sink with a key as tests, in addition to ``SinkContract``. Authors of plugins subclass
``KeyedSinkContract`` and implement two methods."""

from __future__ import annotations

import contextlib
import random
import tempfile
import unittest
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from twopc.errors import RecordRefused, Refused
from twopc.keyed import KeyedSink
from twopc.sink import WholeBatchSink
from twopc.testing.contract import AWKWARD, LOG_ID, SINK
from twopc.testing.kills import Choice, killed_at_each_step
from twopc.testing.query import FIRST_ROUND, Query
from twopc.transaction import Committable
from twopc.transactional_ids import Round

ALIKE = ("a", "A", "a ", " a", "á", "ß", "ss", "0", "00")
"""Texts that some collations treat as equal."""

BATCHES = 12
"""How many batches of random changes are applied."""


class KeyedSinkContract(ABC):
    """Tests for every sink with a key. pytest collects them in a subclass whose name starts with Test.

    Each test calls ``make_sink`` several times, as ``SinkContract`` does. The table is empty at first.
    """

    picklable: bool = True
    """See ``SinkContract``."""

    patience_s: float = 30.0
    """See ``SinkContract``."""

    kills: int = 25
    """The most processes that are killed, each at a different step of a batch."""

    large: int = 5_000
    """How many records the large batch contains."""

    shows_whole_transactions: bool = True
    """Whether readers never see a part of a transaction."""

    null_deletes: bool = False
    """Whether a record with only nulls beside its key deletes the record with that key, as in a compacted topic."""

    # What a subclass implements. ----------------------------------------------------------------------------------

    @abstractmethod
    def make_sink(self) -> KeyedSink[Any]:
        """Return a new sink on the current test's target system. Its key must be a single text column."""

    @abstractmethod
    def rows(self) -> list[tuple[str, str | None]]:
        """Return what a committed reader of the target system sees: the key and value of every record, in any order."""

    def record_batch(self, rows: Mapping[str, str | None]) -> pa.RecordBatch:
        """Return records for the sink, from key → value. Override it if columns are not named ``id`` and ``value``."""
        return pa.record_batch({"id": pa.array([*rows], pa.string()), "value": pa.array([*rows.values()], pa.string())})

    def leftovers(self) -> Sequence[str] | None:
        """Name the remains of transactions in the target system, as in ``SinkContract``. None, the default, if the test
        can't see them."""
        return None

    # What a transaction does. -----------------------------------------------------------------------------------

    def test_a_record_replaces_the_one_of_its_key_and_no_other(self) -> None:
        self._apply(0, {"a": "1", "b": "1", "c": "1"})
        self._apply(1, {"b": "2", "d": "2"})
        self._require({"a": "1", "b": "2", "c": "1", "d": "2"})

    def test_a_delete_removes_the_record_of_its_key_and_no_other(self) -> None:
        self._apply(0, {"a": "1", "b": "1", "c": "1"})
        self._apply(1, deletes="b")
        self._require({"a": "1", "c": "1"})

    def test_no_change_is_visible_before_its_commit(self) -> None:
        self._apply(0, {"a": "1", "b": "1"})
        self._pre_committed(1, {"a": "2", "c": "2"}, "b")
        self._require({"a": "1", "b": "1"})

    def test_a_delete_of_what_is_not_there_is_no_error(self) -> None:
        self._apply(0, deletes="x")
        self._apply(1, {"a": "1"}, "y")
        self._apply(2, deletes="x")
        self._require({"a": "1"})

    def test_the_order_of_calls_within_a_transaction_does_not_matter(self) -> None:
        self._apply(0, {"a": "1", "b": "1", "c": "1", "d": "1"})
        query, schema = self._query(), self.record_batch({"": ""}).schema
        with query.participant(schema, Round(1, 1)) as participant:
            participant.delete(SINK, self.record_batch({"a": None}))
            participant.write(SINK, self.record_batch({"b": "2"}))
            participant.delete(SINK, self.record_batch({"c": None}))
            participant.write(SINK, self.record_batch({"e": "2"}))
            committable = query.sealed(participant)
        assert committable.records == 4
        query.publish(committable, batch_id=1)
        self._require({"b": "2", "d": "1", "e": "2"})

    def test_a_slice_of_deletes_removes_its_own_keys_alone(self) -> None:
        self._apply(0, dict.fromkeys("abcd", "1"))
        query, keys = self._query(), self.record_batch(dict.fromkeys("abcd"))
        with query.participant(keys.schema, Round(1, 1)) as participant:
            participant.delete(SINK, keys.slice(1, 2))
            committable = query.sealed(participant)
        query.publish(committable, batch_id=1)
        self._require({"a": "1", "d": "1"})

    def test_a_null_is_a_value_that_replaces_another(self) -> None:
        self._apply(0, {"a": "1"})
        try:
            self._apply(1, {"a": None})
        except Refused:
            raise unittest.SkipTest("the sink refuses a null beside the key") from None
        self._require({} if self.null_deletes else {"a": None})

    def test_a_sink_that_may_time_out_deletes_by_a_record_that_is_null_beside_its_key(self) -> None:
        """A replay copy stores a delete as such a record."""
        if not self.make_sink().may_time_out:
            raise unittest.SkipTest("the target system rolls back no pre-committed transaction by itself")
        self._apply(0, {"a": "1", "b": "1"})
        self._apply(1, {"a": None})
        self._require({"b": "1"})

    def test_a_key_that_is_null_is_refused_in_a_record_and_in_a_delete(self) -> None:
        keys = self.record_batch({None: "1"})  # type: ignore[dict-item]  # to be refused
        for is_delete in (False, True):
            try:
                with self._query().participant(keys.schema, Round(1, is_delete)) as participant:
                    (participant.delete if is_delete else participant.write)(SINK, keys)
                    participant.pre_commit()
            except Refused:
                continue
            raise AssertionError(f"a {'delete' if is_delete else 'record'} without a key was taken")

    def test_a_delete_whose_key_is_refused_is_left_out_by_itself(self) -> None:
        self._apply(0, dict.fromkeys("abc", "1"))
        keys = self.record_batch({"a": None, None: None, "c": None})  # type: ignore[dict-item]  # as above
        query, sink = self._query(), self._query().sink()
        query.answered(sink.require_valid, keys.schema)
        try:
            with query.sent(sink, Round(1, 1), max_bad_records=1) as participant:
                refused = participant.delete(SINK, keys)
                committable = query.sealed(participant)
        except RecordRefused:
            raise unittest.SkipTest("the sink refuses a whole batch of deletes") from None
        assert [each.record for each in refused] == [1]
        query.publish(committable, batch_id=1)
        self._require({"b": "1"})

    def test_columns_that_records_do_not_have_keep_their_values_or_are_refused(self) -> None:
        self._apply(0, {"a": "1", "b": "1"})
        key = [*self.make_sink().key]
        keys = self.record_batch({"a": None, "c": None}).select(key)
        query = self._query()
        try:
            committable = query.pre_committed(keys, round=Round(1, 1))
        except Refused:
            return
        query.publish(committable, batch_id=1)
        self._require({"a": "1", "b": "1", "c": None})

    def test_keys_that_are_alike_are_kept_apart_or_refused(self) -> None:
        taken = []
        for number, key in enumerate((*ALIKE, *AWKWARD)):
            try:
                self._apply(number, {key: key})
            except Refused:
                continue
            taken += [key] if key not in taken else []
            self._require({each: each for each in taken})
        for number, key in enumerate(taken):
            self._apply(100 + number, deletes=[key])
            self._require({each: each for each in taken[number + 1 :]})

    def test_many_keys_are_replaced_and_deleted(self) -> None:
        keys = [f"{number:06}" for number in range(self.large)]
        self._apply(0, dict.fromkeys(keys, "1"))
        self._apply(1, dict.fromkeys(keys[::3], "2"), keys[1::3])
        self._require({**dict.fromkeys(keys[::3], "2"), **dict.fromkeys(keys[2::3], "1")})

    # Batches and tasks. -----------------------------------------------------------------------------------------

    def test_a_key_that_was_deleted_can_be_inserted_in_the_next_batch(self) -> None:
        self._apply(0, {"a": "1"})
        self._apply(1, deletes="a")
        self._apply(2, {"a": "2"})
        self._require({"a": "2"})

    def test_a_key_that_was_inserted_can_be_deleted_in_the_next_batch(self) -> None:
        self._apply(0, {"a": "1", "b": "1"})
        self._apply(1, {"b": "2"}, "a")
        self._apply(2, deletes="b")
        self._require({})

    def test_the_tasks_of_a_batch_change_their_own_keys(self) -> None:
        self._apply(0, dict.fromkeys("abcd", "1"))
        tasks = [({"a": "2"}, "b"), ({"c": "2", "e": "2"}, ""), ({}, "d")]
        committables = [self._pre_committed(1, *each, partition=number) for number, each in enumerate(tasks)]
        self._query().publish(*reversed(committables), batch_id=1)
        self._require({"a": "2", "c": "2", "e": "2"})

    def test_batches_apply_in_their_order(self) -> None:
        drawn, expected = random.Random(54), dict[str, str | None]()  # noqa: S311  # changes, and no secrets
        for number in range(BATCHES):
            keys = drawn.sample("abcdefghijkl", 6)
            changes = dict.fromkeys(keys[:3], f"{number}")
            tasks = [({k: v for k, v in changes.items() if k <= "f"}, [k for k in keys[3:] if k <= "f"])]
            tasks += [({k: v for k, v in changes.items() if k > "f"}, [k for k in keys[3:] if k > "f"])]
            committables = [
                self._pre_committed(number, *each, partition=partition)
                for partition, each in enumerate(tasks)
                if any(each)
            ]
            self._query().publish(*committables, batch_id=number)
            expected = {key: value for key, value in {**expected, **changes}.items() if key not in keys[3:]}
            self._require(expected)

    # Commits and aborts. ----------------------------------------------------------------------------------------

    def test_a_commit_applies_the_changes_of_its_own_transaction_alone(self) -> None:
        self._apply(0, dict.fromkeys("abcd", "1"))
        schema = self.record_batch({"": ""}).schema
        with contextlib.suppress(InterruptedError), self._query().participant(schema, Round(1, 1), serial=1) as open_:
            open_.delete(SINK, self.record_batch({"a": None}))
            open_.write(SINK, self.record_batch({"b": "2"}))
            query = self._query()
            with query.participant(schema, Round(1, 1), serial=2) as winner:
                winner.delete(SINK, self.record_batch({"c": None}))
                committable = query.sealed(winner)
            query.publish(committable, batch_id=1)
            seen = dict(self.rows())  # an open transaction may hold back readers
            assert (seen.get("a"), seen.get("b")) == ("1", "1"), f"the changes of an open attempt are visible: {seen}"
            raise InterruptedError
        query.sweep()
        self._require({"a": "1", "b": "1", "d": "1"})

    def test_nothing_is_left_of_changes_that_have_ended(self) -> None:
        if self.leftovers() is None:
            raise unittest.SkipTest("the test can't see what is left")
        self._apply(0, {"a": "1", "b": "1"})
        self._apply(1, {"c": "2"}, "a")
        self._query().abort(self._pre_committed(2, {"d": "3"}, "b"))
        assert not (left := self.leftovers()), f"left over: {left}"

    def test_a_repeated_commit_changes_nothing(self) -> None:
        self._apply(0, {"a": "1", "b": "1"})
        committable = self._pre_committed(1, {"a": "2"}, "b")
        for _ in range(3):
            self._query().publish(committable, batch_id=1)
        self._require({"a": "2"})

    def test_a_late_commit_of_an_older_batch_takes_nothing_back(self) -> None:
        """A coordinator that was paused in its call wakes up after a newer one has committed the next batch."""
        self._apply(0, {"a": "1", "b": "1"})
        old = self._pre_committed(1, {"b": "2"}, "a")
        self._query().publish(old, batch_id=1)
        self._apply(2, {"a": "3", "b": "3", "c": "3"})
        with contextlib.suppress(Exception):  # the sink may have forgotten it: only the effect counts
            self._query().commit(old, batch_id=1)
        self._require({"a": "3", "b": "3", "c": "3"})

    def test_an_aborted_change_changes_nothing(self) -> None:
        self._apply(0, {"a": "1", "b": "1"})
        self._query().abort(self._pre_committed(1, {"a": "2", "c": "2"}, "b"))
        self._require({"a": "1", "b": "1"})
        self._apply(1, {"a": "3"}, "b", incarnation=2)
        self._require({"a": "3"})

    def test_a_participant_that_fails_deletes_nothing_and_leaves_nothing_open(self) -> None:
        self._apply(0, {"a": "1"})
        records = self.record_batch({"a": None})
        query = self._query()
        with contextlib.suppress(InterruptedError), query.participant(records.schema, Round(1, 1)) as participant:
            participant.delete(SINK, records)
            raise InterruptedError
        assert not query.recover()
        self._require({"a": "1"})

    def test_what_recover_finds_of_deletes_alone_can_be_aborted(self) -> None:
        self._apply(0, {"a": "1"})
        self._pre_committed(1, deletes="a")
        query = self._query()
        assert len(query.recover()) == 1
        query.sweep()
        assert not query.recover()
        self._require({"a": "1"})

    # Processes that are killed. ---------------------------------------------------------------------------------

    def test_a_process_killed_at_any_step_of_a_keyed_batch_neither_loses_nor_revives_a_record(self) -> None:
        """In each of two tasks, every batch replaces a record, inserts a record, and deletes the record that the
        previous batch inserted."""
        if not self.picklable:
            raise unittest.SkipTest("no other process can reach the target system")
        choice = Choice.given(self.kills)
        numbers = range(choice.at_most + 1)
        batches = [[self.record_batch({f"p{p}": f"{n}", f"{n}.{p}": f"{n}"}) for p in "01"] for n in numbers]
        deletes = [[self.record_batch({f"{n - 1}.{p}": None}) for p in "01"] for n in numbers]
        last = -1
        with tempfile.TemporaryDirectory() as folder:
            for number, step in enumerate(
                killed_at_each_step(
                    SINK, self.make_sink(), batches, Path(folder), self.patience_s, choice, deletes=deletes
                )
            ):
                self._require_whole(number, step)
                last = number
        self._require({f"p{p}": f"{last}" for p in "01"} | {f"{last}.{p}": f"{last}" for p in "01"})

    def _require_whole(self, number: int, step: str) -> None:
        """Read between a kill and the next start, and require that nothing is partly visible and no record has come
        back."""
        seen = self.rows()
        keys = [key for key, _ in seen]
        assert len(keys) == len({*keys}), f"a key is there twice after a kill at {step}: {seen}"
        found = dict(seen)
        done = {found.get(f"p{p}") == f"{number}" for p in "01"}
        is_whole = not isinstance(self.make_sink(), WholeBatchSink) or len(done) == 1
        assert is_whole, f"a part of a batch after a kill at {step}"
        for p in "01" if self.shows_whole_transactions else "":
            is_done = found.get(f"p{p}") == f"{number}"
            assert (f"{number}.{p}" in found) is is_done, f"a part of a transaction after a kill at {step}: {seen}"
            assert (f"{number - 1}.{p}" in found) is (not is_done and number > 0), f"a kill at {step} revived: {seen}"

    # Shared by the tests. ---------------------------------------------------------------------------------------

    def _query(self) -> Query:
        return Query(self.make_sink, SINK, LOG_ID, travels=self.picklable, patience_s=self.patience_s)

    def _pre_committed(
        self,
        batch_id: int,
        records: Mapping[str, str | None] | None = None,
        deletes: Sequence[str] = (),
        partition: int = 0,
        incarnation: int = FIRST_ROUND.incarnation,
    ) -> Committable:
        """Return a transaction with these records and deletes, as read back from the log."""
        query = self._query()
        round, schema = Round(incarnation, batch_id), self.record_batch({"": ""}).schema
        with query.participant(schema, round, partition) as participant:
            participant.write(SINK, self.record_batch(records or {}))
            participant.delete(SINK, self.record_batch(dict.fromkeys(deletes)))
            return query.sealed(participant)

    def _apply(
        self,
        batch_id: int,
        records: Mapping[str, str | None] | None = None,
        deletes: Sequence[str] = (),
        incarnation: int = FIRST_ROUND.incarnation,
    ) -> None:
        committable = self._pre_committed(batch_id, records, deletes, incarnation=incarnation)
        self._query().publish(committable, batch_id=batch_id)

    def _require(self, rows: Mapping[str, str | None]) -> None:
        def key(row: tuple[str, str | None]) -> tuple[str, str]:
            return row[0], row[1] or ""

        seen, due = sorted(self.rows(), key=key), sorted(rows.items(), key=key)
        if seen != due:
            few = [each for each in due if each not in seen][:9], [each for each in seen if each not in due][:9]
            raise AssertionError(f"of {len(due)} rows are missing: {few[0]}, and there without reason: {few[1]}")
