"""The contract of lake tables with ``upsert_by``, and helpers for its tests: rows have an id, a name and a day."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.sink_place import ROUND, SinkPlace, from_log
from twopc import Committable, Participant, Round
from twopc.errors import RecordRefused

COLUMNS = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False), ("day", pa.string())])

Rows = list[tuple[int | None, str, str | None]]


def records(rows: Rows) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=COLUMNS)


def vote(
    place: SinkPlace[Any],
    rows: Rows = [],  # noqa: B006  # only read
    deleted: Sequence[int | None] = (),
    round: Round = ROUND,
    partition: int = 0,
) -> Committable:
    """Return a pre-committed transaction with these rows, and with deletes of these ids."""
    with Participant({"orders": place.sink(upsert_by="id")}, round, partition=partition) as participant:
        if rows:
            participant.write("orders", records(rows))
        if deleted:
            participant.delete("orders", records([(each, "", "") for each in deleted]))
        return participant.pre_commit()["orders"]


def sealed(place: SinkPlace[Any], *votes: Committable) -> list[Committable]:
    return [from_log(each) for each in place.sink(upsert_by="id").seal(votes, 0.0)]


def upserts(place: SinkPlace[Any]) -> Any:
    """Return a new, opened sink with the key ``id``."""
    return place.sink(upsert_by="id")


def commit(place: SinkPlace[Any], batch_id: int, *votes: Committable) -> list[Committable]:
    batch, sink = sealed(place, *votes), upserts(place)
    sink.commit_batch(batch_id, batch)
    sink.complete(batch_id, batch)
    return batch


def run(place: SinkPlace[Any], batch_id: int, rows: Rows, *deleted: int) -> list[Committable]:
    return commit(place, batch_id, vote(place, rows, deleted, Round(1, batch_id)))


class KeyedTableContract:
    """What readers see, whatever other writers do. A module must provide the fixture ``table``."""

    def readings(self, table: Any) -> Sequence[Sequence[dict[str, Any]]]:
        """Return the rows that each reader sees."""
        raise NotImplementedError

    def append(self, table: Any, *rows: tuple[int, str, str]) -> None:
        """Have another program append rows."""
        raise NotImplementedError

    def compact(self, table: Any) -> None:
        """Have another program rewrite the files."""
        raise NotImplementedError

    def between(
        self,
        sink: Any,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Callable[[], object] | None = None,
        is_answer_lost: bool = False,
    ) -> Sequence[Callable[[], object]]:
        """Call ``before`` once between the look of ``sink`` and its commit, or lose the commit's response. Return
        functions that send the requests again."""
        raise NotImplementedError

    def require(self, table: Any, *names: str) -> None:
        for rows in self.readings(table):
            assert sorted(row["name"] for row in rows) == sorted(names)

    def test_a_record_replaces_the_one_of_its_key_and_a_delete_removes_it(self, table: Any) -> None:
        run(table, 0, [(number, f"{number}", "mon") for number in range(10)])
        run(table, 1, [(1, "A", "tue"), (40, "d", "tue")], 3, 99)
        self.require(table, "A", "d", *"02456789")
        run(table, 2, [], 2)
        run(table, 3, [(2, "again", "wed"), (1, "AA", "mon")])
        self.require(table, "AA", "again", "d", *"0456789")

    def test_the_records_of_several_tasks_and_files_of_a_batch_replace_older_ones_alone(self, table: Any) -> None:
        run(table, 0, [(number, f"old {number}", "mon") for number in range(6)])
        votes = [
            vote(table, [(n, f"new {n}", f"{n}"), (n + 10, "new", "mon")], [n + 3], Round(1, 1), partition=n)
            for n in range(3)
        ]
        commit(table, 1, *votes)
        self.require(table, "new", "new", "new", "new 0", "new 1", "new 2")

    def test_a_null_is_a_value_that_replaces_another(self, table: Any) -> None:
        run(table, 0, [(1, "a", "mon"), (2, "b", None)])
        run(table, 1, [(1, "a", None), (2, "b", "tue")])
        for rows in self.readings(table):
            assert sorted((row["id"], row["day"]) for row in rows) == [(1, None), (2, "tue")]

    def test_a_key_may_have_several_columns(self, table: Any) -> None:
        rows = records([(1, "one", "mon"), (1, "two", "tue"), (2, "three", "mon")])
        for batch_id in range(2):
            sink = table.sink(upsert_by="name,id")
            with Participant({"orders": sink}, Round(1, batch_id), partition=0) as participant:
                participant.write("orders", rows if batch_id == 0 else rows.slice(1, 1))
                if batch_id == 1:
                    participant.delete("orders", rows.slice(2))
                batch = sink.seal([participant.pre_commit()["orders"]], 0.0)
            sink.commit_batch(batch_id, batch)
        self.require(table, "one", "two")

    def test_records_that_others_appended_before_the_commit_are_replaced_and_later_ones_stay(
        self, table: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(table, 0, [(1, "a", "mon"), (2, "b", "mon")])
        batch, sink = sealed(table, vote(table, [(1, "A", "mon")], [7], Round(1, 1))), upserts(table)
        foreign = [(1, "foreign", "tue"), (7, "foreign", "mon"), (8, "foreign", "mon")]
        self.between(sink, monkeypatch, before=lambda: self.append(table, *foreign))
        sink.commit_batch(1, batch)
        self.require(table, "A", "b", "foreign")
        self.append(table, (1, "later", "mon"))
        self.require(table, "A", "b", "foreign", "later")
        run(table, 2, [(1, "last", "mon")])
        self.require(table, "b", "foreign", "last")

    def test_a_rewrite_by_others_neither_brings_a_deleted_record_back_nor_loses_one(
        self, table: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for batch_id in range(3):
            run(table, batch_id, [(batch_id, f"{batch_id}", "mon"), (batch_id + 10, "stays", "mon")])
        batch, sink = sealed(table, vote(table, [(0, "new", "tue")], [1], Round(1, 3))), upserts(table)
        self.between(sink, monkeypatch, before=lambda: self.compact(table))
        sink.commit_batch(3, batch)
        self.require(table, "2", "new", "stays", "stays", "stays")
        self.compact(table)
        sink.commit_batch(3, batch)
        self.require(table, "2", "new", "stays", "stays", "stays")

    def test_a_batch_whose_answer_was_lost_is_applied_once_and_never_after_a_later_one(
        self, table: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(table, 0, [(1, "a", "mon"), (2, "b", "mon")])
        batch, sink = sealed(table, vote(table, [(1, "A", "tue")], [2], Round(1, 1))), upserts(table)
        late = self.between(sink, monkeypatch, is_answer_lost=True)
        sink.commit_batch(1, batch)
        self.require(table, "A")
        run(table, 2, [(1, "AA", "tue"), (2, "B", "mon")])
        for request in late:
            with pytest.raises(Exception, match=r"."):  # the catalog refuses a late request
                request()
        for again in (sink, upserts(table)):
            again.commit_batch(1, batch)
        self.require(table, "AA", "B")

    def test_a_record_or_a_delete_without_its_key_is_refused(self, table: Any) -> None:
        with pytest.raises(RecordRefused, match="one of 'upsert_by', and the record has no value") as refused:
            vote(table, [(1, "a", "mon"), (None, "b", "mon")])
        assert (refused.value.column, refused.value.record) == ("id", 1)
        with pytest.raises(RecordRefused, match="one of 'upsert_by', and the record has no value"):
            vote(table, [], [1, None])
