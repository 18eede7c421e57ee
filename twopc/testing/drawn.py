"""Writes drawn values through a sink, and compares what readers see with what was written (invariant 13)."""

from __future__ import annotations

import operator
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, count
from random import Random
from typing import Any

import pyarrow as pa

from twopc.errors import RecordRefused, Refused, SchemaMismatch
from twopc.testing.query import Query
from twopc.testing.values import Row, drawn, edges, exact, label, leaves, smallest
from twopc.transactional_ids import Round

Reader = Callable[[], Sequence[Mapping[str, Any]]]

NO_LIMIT = 1_000_000
"""The most records that may be refused: practically any number."""

FEW = 5
"""The most columns that an error names."""

ALONE = 20
"""How many values are drawn for a column if the sink refuses some of them. Each refusal takes time."""


class Drawn:
    """An initially empty table to which values are written, most with nulls in all other columns.

    Args:
        query: the query that writes.
        readers: name → a function that reads all visible rows. Columns that a reader does not return are not compared.
        schema: the columns.
        batch_of: makes a record batch from rows.
        unique: the column that identifies rows.
        settle: waits until readers see all rows taken so far, if they may see them late.
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
        self._query, self._readers, self._schema = query, readers, schema
        self._batch_of, self._unique, self._settle = batch_of, unique, settle
        self._taken = list[Row]()
        self._batch_ids, self._attempts, self._numbers = count(), count(), count()
        self._random = {name: Random(name) for name in schema.names}  # noqa: S311  # equal values in every run
        self._keys = set[Any]()  # the unique values of rows
        self._alone = {unique}  # columns whose values are written in separate rows
        self._wrong = dict[Any, dict[str, str]]()  # the unique value of a row → what is wrong, by column
        self._seen = {name: Counter[Any]() for name in readers}
        self._compared = {name: Counter[str]() for name in readers}  # numbers of values, by column and nested leaf

    def require_unchanged(self, per_column: int) -> None:
        """Write each column's edge values, then drawn values.

        Args:
            per_column: how many values are drawn; at most ``ALONE`` if the sink has refused a value of the column.

        Raises:
            AssertionError: values were changed, with a small example per column; or too few values were compared.
        """
        fields = [field for field in self._schema if edges(field.type)]
        wrong = self._changed(self._rows({field.name: edge} for field in fields for edge in edges(field.type)))
        of_edges = self._most_compared()
        for number in (min(per_column, ALONE), per_column - ALONE):
            if not wrong and number > 0:
                wrong = self._changed(self._drawn(fields, number))
        for name in [*wrong][:FEW]:
            wrong[name] = self._smallest(name) or wrong[name]
        assert not wrong, "\n".join([*wrong.values()][:FEW])
        parts = {
            part for field in fields for edge in edges(field.type) for part in leaves(edge, field.type, field.name)
        }
        least, of_drawn = min(per_column, ALONE) // 10 or 1, self._most_compared() - of_edges
        few = {field.name for field in fields if of_drawn[field.name] < least} | (parts - {*self._most_compared()})
        assert not few, (
            f"of {sorted(few)} no value was written and compared, or fewer than {least} drawn ones. "
            "Leave out of types_taken what the sink refuses, and read every column by one of the readers"
        )

    def _drawn(self, fields: Sequence[pa.Field], number: int) -> list[Row]:
        values = [{field.name: drawn(field.type, self._random[field.name]) for field in fields} for _ in range(number)]
        together = [{name: value for name, value in row.items() if name not in self._alone} for row in values]
        apart = [{name: row[name]} for row in values[:ALONE] for name in sorted(self._alone) if name in row]
        return self._rows([*filter(None, together), *apart])

    def _rows(self, of: Iterable[Row]) -> list[Row]:
        """Return rows with nulls beside these values. A row is left out if its unique value exists already."""
        rows, unique = list[Row](), self._unique
        for values in of:
            row = dict.fromkeys(self._schema.names) | values
            if unique in row and row[unique] is None:
                type = self._schema.field(unique).type
                labels = (label(type, number, self._random[unique]) for number in self._numbers)
                row[unique] = next(each for each in labels if exact(each) not in self._keys)
            if unique not in row or self._key(row) not in self._keys:
                self._keys.add(self._key(row))
                rows.append(row)
        return rows

    def _most_compared(self) -> Counter[str]:
        return reduce(operator.or_, self._compared.values(), Counter())

    def _smallest(self, name: str) -> str:
        """Describe how the sink changes a small value of a column; empty if no value is changed when written by
        itself."""
        known = dict[Any, dict[str, str]]()

        def changed(value: Any) -> dict[str, str]:
            if (key := exact(value)) not in known:
                rows = self._rows([{name: value}])
                known[key] = self._changed(rows) if rows else self._wrong.get(key, {})
            return known[key]

        found = smallest(lambda value: bool(changed(value)), self._schema.field(name).type)
        return "; ".join(changed(*found).values()) if found else ""

    def _key(self, row: Row) -> Any:
        return exact(row.get(self._unique, row))

    def _changed(self, rows: Sequence[Row]) -> dict[str, str]:
        """Write rows. Return how readers see values that the sink has changed, by column."""
        taken = dict(enumerate(self._published(rows)))
        self._taken += taken.values()
        self._settle(self._taken)
        wrong = dict[str, str]()
        for reader in self._readers:
            for number, changed in self._differences(reader, taken).items():
                of_row = {name: f"{reader} reads {told}" for name, told in changed.items()}
                self._wrong.setdefault(self._key(taken[number]), {}).update(of_row)
                wrong = of_row | wrong
        return wrong

    def _published(self, rows: Sequence[Row]) -> list[Row]:
        """Commit the rows that the sink takes, and return them."""
        rest, round = [*rows], Round(1, next(self._batch_ids))
        while rest:
            try:
                return self._committed(rest, round)
            except SchemaMismatch:  # the sink never takes this type
                raise
            except Refused as refused:  # from a sink that leaves out no records
                at = refused.record if isinstance(refused, RecordRefused) else None
                if at is None and (half := len(rest) // 2):
                    return self._published(rest[:half]) + self._published(rest[half:])
                rest += self._apart(rest.pop(at or 0))
        return []

    def _committed(self, rows: Sequence[Row], round: Round) -> list[Row]:
        query, sink = self._query, self._query.sink()
        query.answered(sink.require_valid, self._batch_of(rows).schema)
        taken, rest = list[Row](), [*rows]
        with query.sent(sink, round, serial=next(self._attempts), max_bad_records=NO_LIMIT) as participant:
            while rest:
                refused = {each.record for each in participant.write(query.name, self._batch_of(rest))}
                taken += [row for number, row in enumerate(rest) if number not in refused]
                rest = [one for number, row in enumerate(rest) if number in refused for one in self._apart(row)]
            if not taken:
                participant.pre_commit()  # which rolls back
                return []
            committable = query.sealed(participant)
        query.publish(committable, batch_id=round.batch_id)
        return taken

    def _apart(self, row: Row) -> list[Row]:
        """Return a separate row for each value of a refused row, or no rows if the refused row has only one value."""
        names = [name for name, value in row.items() if value is not None and name != self._unique] or [self._unique]
        if len(names) == 1:
            self._alone.add(names[0])
            return []
        return self._rows({name: row[name]} for name in names)

    def _differences(self, reader: str, written: Mapping[int, Row]) -> dict[int, dict[str, str]]:
        """For each row number and column, return how a reader sees a value that differs from the value just written."""
        rows = self._readers[reader]()
        names = [name for name in self._schema.names if not rows or name in rows[0]]
        types = [(name, self._schema.field(name).type) for name in names]
        for row in written.values():
            of_row = ({name, *leaves(row[name], type, name)} for name, type in types if row[name] is not None)
            self._compared[reader].update(chain.from_iterable(of_row))
        found = [{name: row[name] for name in names} for row in rows]
        written = {number: {name: row[name] for name in names} for number, row in written.items()}
        before, seen, due = self._seen[reader], Counter(map(exact, found)), Counter(map(exact, written.values()))
        self._seen[reader] = seen
        gone = before - seen
        assert not gone, f"{reader} no longer reads {_short([*gone])}, which it read before"
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
        """Return the first column with a value, except the unique column."""
        return next((name for name, value in row.items() if name != self._unique and value is not None), self._unique)

    def _told(self, row: Row, other: Row) -> dict[str, str]:
        """For each column that differs, describe how ``other``, a row that was read, differs from ``row``, which was
        written."""
        columns = [self._schema.field(name) for name in _unlike(row, other)]
        if not columns:
            return {self._named(row): f"one more of {_short(row)}"}
        return {
            each.name: f"{_short(other[each.name])} for {_short(row[each.name])} in column {each.name!r} of {each.type}"
            for each in columns
        }


def _unlike(row: Row, other: Row) -> list[str]:
    return [name for name in row if exact(row[name]) != exact(other[name])]


def _short(value: Any) -> str:
    """Return both ends of a value, in ASCII, and its length."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    short.maxdict = short.maxlist = short.maxtuple = 12
    of = f" ({len(value)} long)" if isinstance(value, str | bytes) and len(value) > 100 else ""
    return f"{short.repr(value)}{of}".encode("ascii", "backslashreplace").decode()
