"""Writes drawn rows by a sink, and compares what readers see with what was given (invariant 13)."""

from __future__ import annotations

import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from twopc.errors import RecordRefused, Refused, SchemaMismatch
from twopc.testing.query import Query
from twopc.testing.values import Row, exact, label, smallest
from twopc.transactional_ids import Round

Reader = Callable[[], Sequence[Mapping[str, Any]]]

NO_LIMIT = 1_000_000
"""How many records may be refused."""

FEW = 5
"""The most columns that an error names."""


class Drawn:
    """A table to which drawn rows are written, each once: it may have a unique key.

    Attributes:
        taken: how many values of each column were taken.

    Args:
        query: the query that writes.
        readers: what reads all visible rows, by name. There are none yet. Columns that a reader lacks are not compared.
        schema: the columns.
        batch_of: makes a record batch of rows.
        unique: the column that tells rows apart.
        settle: waits until readers see all rows that were taken so far, if they may see them late.
    """

    def __init__(
        self,
        query: Query,
        readers: Mapping[str, Reader],
        schema: pa.Schema,
        batch_of: Callable[[Sequence[Row]], pa.RecordBatch],
        unique: str,
        settle: Callable[[Sequence[Row]], object],
    ) -> None:
        self.taken = Counter[str]()
        self._query, self._readers, self._schema = query, readers, schema
        self._batch_of, self._unique, self._settle = batch_of, unique, settle
        self._taken = list[Row]()
        self._batch_ids, self._attempts = count(), count()
        self._written = dict[Any, Any]()  # the unique value of a row → the row as it was given
        self._wrong = dict[Any, dict[str, str]]()  # likewise → what is wrong, by column
        self._seen = {name: Counter[Any]() for name in readers}

    def check(self, rows: Sequence[Row]) -> dict[str, str]:
        """Write the rows that are new. Return how rows came back that are not as they were, by column."""
        new = {key: row for row in rows if (key := self._key(row)) not in self._written}
        if new:
            self._written |= {key: exact(row) for key, row in new.items()}
            self._write([*new.values()])
        wrong = dict[str, str]()
        for row in rows:
            key = self._key(row)
            if self._written[key] == exact(row):  # and not another row of this key
                wrong |= self._wrong.get(key, {})
        return wrong

    def require_unchanged(self, rows: Sequence[Row]) -> None:
        """Raise ``AssertionError`` with a small value of each column that changes values."""
        wrong = self.check(rows)
        for name in [*wrong][:FEW]:
            if small := self._smallest(name):
                wrong[name] = small
        assert not wrong, "\n".join([*wrong.values()][:FEW])

    def _smallest(self, name: str) -> str:
        """Return what is wrong with a small value of a column, if one is found that is wrong alone."""
        numbers = count()
        known = defaultdict[Any, int](lambda: next(numbers))

        def row_of(value: Any) -> Row:
            row: Row = dict.fromkeys(self._schema.names)
            if self._unique in row:
                row[self._unique] = label(self._schema.field(self._unique).type, f"{name} {known[exact(value)]}")
            return {**row, name: value}

        found = smallest(lambda value: bool(self.check([row_of(value)])), self._schema.field(name).type)
        return "; ".join(self.check([row_of(*found)]).values()) if found else ""

    def _key(self, row: Row) -> Any:
        return exact(row.get(self._unique, row))

    def _write(self, rows: Sequence[Row]) -> None:
        taken = self._published(dict(enumerate(rows)))
        self.taken.update(name for row in taken.values() for name, value in row.items() if value is not None)
        self._taken += taken.values()
        self._settle(self._taken)
        for reader in self._readers:
            for number, wrong in self._differences(reader, taken).items():
                of_row = self._wrong.setdefault(self._key(rows[number]), {})
                of_row |= {name: of_row.get(name, f"{reader} reads {told}") for name, told in wrong.items()}

    def _published(self, rows: Mapping[int, Row]) -> dict[int, Row]:
        """Commit the rows that the sink takes, and return them, with null for each value that it refuses."""
        rest, round = dict(rows), Round(1, next(self._batch_ids))
        while rest:
            try:
                return self._committed(rest, round)
            except SchemaMismatch:  # the sink does not take a type at all
                raise
            except Refused as refused:  # by a sink that leaves no record out
                if not isinstance(refused, RecordRefused) or refused.record is None:
                    alone = [{number: row} for number, row in rest.items()] if len(rest) > 1 else []
                    return {number: row for each in alone for number, row in self._published(each).items()}
                number = [*rest][refused.record]
                nulled = _nulled(rest, {number: refused.column}, self._unique)
                rest = {other: row for other, row in rest.items() if other != number} | nulled
        return {}

    def _committed(self, rows: Mapping[int, Row], round: Round) -> dict[int, Row]:
        query, sink = self._query, self._query.sink()
        query.answered(sink.require_valid, self._batch_of([*rows.values()]).schema)
        taken, rest = dict[int, Row](), dict(rows)
        with query.sent(sink, round, serial=next(self._attempts), max_bad_records=NO_LIMIT) as participant:
            while rest:
                numbers = [*rest]
                found = participant.write(query.name, self._batch_of([*rest.values()]))
                refused = {numbers[each.record]: each.column for each in found if each.record is not None}
                taken |= {number: row for number, row in rest.items() if number not in refused}
                rest = _nulled(rest, refused, self._unique)
            if not taken:
                participant.pre_commit()  # which rolls back
                return {}
            committable = query.sealed(participant)
        query.publish(committable, batch_id=round.batch_id)
        return taken

    def _differences(self, reader: str, written: Mapping[int, Row]) -> dict[int, dict[str, str]]:
        """Return what a reader sees in place of what was just written, by the numbers of the rows and the columns."""
        rows = self._readers[reader]()
        names = [name for name in self._schema.names if not rows or name in rows[0]]
        found = [{name: row[name] for name in names} for row in rows]
        written = {number: {name: row[name] for name in names} for number, row in written.items()}
        before, seen, due = self._seen[reader], Counter(map(exact, found)), Counter(map(exact, written.values()))
        self._seen[reader] = seen
        unexpected, by_key = seen - before - due, {self._key(row): number for number, row in written.items()}
        lost = [number for number, row in written.items() if seen[exact(row)] < due[exact(row)]]
        wrong = {number: {self._named(written[number]): f"nothing for {_short(written[number])}"} for number in lost}
        for row in found:
            if unexpected[exact(row)]:
                assert written, f"{reader} reads {_short(row)}, and nothing was written"
                number, of = by_key.get(self._key(row)), lost or [*written]
                if number not in of:
                    number = min(of, key=lambda each: len(_unlike(written[each], row)))
                wrong[number] = self._told(written[number], row)
        return wrong

    def _named(self, row: Row) -> str:
        """Return the first column with a value beside that which tells rows apart."""
        return next((name for name, value in row.items() if name != self._unique and value is not None), self._unique)

    def _told(self, row: Row, other: Row) -> dict[str, str]:
        """Return how a row that was read differs from the one that was written, by column."""
        columns = [self._schema.field(name) for name in _unlike(row, other)]
        if not columns:
            return {self._named(row): f"one more of {_short(row)}"}
        return {
            each.name: f"{_short(other[each.name])} for {_short(row[each.name])} in column {each.name!r} of {each.type}"
            for each in columns
        }


def _unlike(row: Row, other: Row) -> list[str]:
    return [name for name in row if exact(row[name]) != exact(other[name])]


def _nulled(rows: Mapping[int, Row], refused: Mapping[int, str | None], unique: str) -> dict[int, Row]:
    """Return the rows that are refused, with null for the value that is; without those that have no such value."""
    left = dict[int, Row]()
    for number, column in refused.items():
        row = rows[number]
        names = [name for name in row if column == name or (column or "").startswith((f"{name}.", f"{name}["))]
        if names and names[0] != unique and row[names[0]] is not None:
            left[number] = {**row, names[0]: None}
    return left


def _short(value: Any) -> str:
    """Both ends of a value, in ASCII, and how long it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    short.maxdict = short.maxlist = short.maxtuple = 12
    of = f" ({len(value)} long)" if isinstance(value, str | bytes) and len(value) > 100 else ""
    return f"{short.repr(value)}{of}".encode("ascii", "backslashreplace").decode()
