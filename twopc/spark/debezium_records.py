"""Debezium records as rows of a table, with operation, key and order. Needs no Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeAlias

from twopc.errors import RecordRefused
from twopc.spark.debezium_values import Column, Given, Number, Undecodable, decoded

UNAVAILABLE = "__debezium_unavailable_value"
"""The connector's default placeholder for a large value that did not change (``unavailable.value.placeholder``)."""

_Fields: TypeAlias = "Mapping[str, Mapping[str, Any]] | None"
"""A record's schema, by field; None if the record has no schema."""

WRITES = ("c", "r", "u")
DELETE, TRUNCATE, MESSAGE = "d", "t", "m"


class Row(NamedTuple):
    """One change of a row."""

    values: Sequence[Any]  # one per column; in a delete, only the key's are not null
    op: str  # ``c``, ``u``, ``r`` (a snapshot's row), ``d``, or ``t`` for a truncate
    order: tuple[int, ...]  # increases with the changes of a key
    unavailable: Sequence[str]  # the columns whose value the record does not have
    moved: str | None = None  # the source's transaction, if the record is half of a primary-key change


class Place(NamedTuple):
    """A record's place in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True)
class Decoder:
    """Turns records into rows. The arguments are those of ``twopc.spark.debezium``."""

    columns: Sequence[Column]
    key: Sequence[str]
    order: str = "position"
    flattened: bool = False
    tombstones: str = "ignore"
    decimals: str = "precise"
    missing: str = "refuse"
    replace_null_with_default: bool = True
    unavailable_value: str = UNAVAILABLE
    truncated: frozenset[Place] = field(default_factory=frozenset)

    def rows(self, key: bytes | None, value: bytes | None, place: Place, *, is_moved: bool = False) -> Iterator[Row]:
        """Yield the changes that a record makes: none, one, or the delete of one key and the change of another.

        ``is_moved``: whether headers mark the record as half of a primary-key change, which is sent as a delete of the
        old key and an insert of the new one. Raises RecordRefused: the record can't be decoded exactly, or its place in
        the order of changes is unknown.
        """
        try:
            yield from self._rows(key, value, place, is_moved)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            _refuse(place, f"it does not have the form of Debezium's records ({type(error).__name__})")

    def _rows(self, key: bytes | None, value: bytes | None, place: Place, is_moved: bool) -> Iterator[Row]:
        if value is None:
            yield from self._of_tombstone(key, place)
            return
        payload, schema = _unwrap(_parsed(value, place))
        if not isinstance(payload, dict):
            _refuse(place, "its value is not an object of JSON. Set value.converter to Connect's JsonConverter")
        if self.flattened:
            yield self._of_flat(key, payload, schema, place)
        else:
            moved = _transaction(payload) if is_moved else None
            yield from (row._replace(moved=moved) for row in self._of_envelope(key, payload, schema, place))

    # Shapes of records. -----------------------------------------------------------------------------------------

    def _of_tombstone(self, key: bytes | None, place: Place) -> Iterator[Row]:
        if key is None:
            _refuse(place, "it has neither a key nor a value")
        if self.tombstones == "delete":
            yield self._deletion(self._named(key, place) or (None, None), (0, 0, 0), place)

    def _of_flat(self, key: bytes | None, payload: dict[str, Any], schema: _Fields, place: Place) -> Row:
        if "op" in payload and "source" in payload:
            _refuse(place, "it is an envelope, and flattened=True was given. Leave that out")
        named = self._named(key, place)
        deleted = str(payload.get("__deleted", "false")).lower()
        if deleted == "true":
            return self._deletion(named or (payload, schema), (0, 0, 0), place)
        if deleted != "false":
            _refuse(place, "its field __deleted is neither true nor false")
        return self._written(payload, schema, "u", (0, 0, 0), place)

    def _of_envelope(self, key: bytes | None, payload: dict[str, Any], schema: _Fields, place: Place) -> Iterator[Row]:
        op = payload.get("op")
        if op is None:
            _refuse(
                place,
                "it has no 'op', so it is no envelope of Debezium. If the connector flattens its records"
                " (ExtractNewRecordState), give flattened=True and order='offset'",
            )
        if op == MESSAGE:
            return
        if op == TRUNCATE:
            yield self._of_truncate(payload, place)
            return
        if op not in (*WRITES, DELETE):
            _refuse(place, f"its operation {str(op)[:9]!r} is unknown")
        position = self._position(payload.get("source"), place)
        named, before = self._named(key, place), (payload.get("before"), _nested_fields(schema, "before"))
        if op == DELETE:
            yield self._deletion(named or before, position, place)
            return
        after = payload.get("after")
        if not isinstance(after, dict):
            _refuse(place, f"its operation is {op!r}, and it has no 'after'")
        row = self._written(after, _nested_fields(schema, "after"), op, position, place)
        if self._has_key(before[0]):
            old = self._deletion(before, position, place)
            is_another = self._key_of(old) != self._key_of(row)
            if is_another and (
                named is None or self._key_of(self._deletion(named, position, place)) == self._key_of(old)
            ):
                yield old
        yield row

    def _of_truncate(self, payload: dict[str, Any], place: Place) -> Row:
        if place not in self.truncated:
            go_on = (
                "leave the truncate, and what came before it, out of the frame that debezium gets: with order='offset',"
                " nothing tells which records of other partitions these are"
                if self.order == "offset"
                else f"start the query with debezium(..., truncated=[({place.topic!r}, {place.partition},"
                f" {place.offset})]): that skips the truncate and, in this batch, what came before it"
            )
            _refuse(
                place,
                f"the table was truncated. Nothing of the batch was written. Empty the copies by hand, then {go_on}."
                " With skipped.operations=t, which is the connector's default, no truncate is sent, and copies keep"
                " their rows",
            )
        order = self._order(self._position(payload.get("source"), place), TRUNCATE, place)
        return Row([None] * len(self.columns), TRUNCATE, order, [])

    # Rows. ------------------------------------------------------------------------------------------------------

    def _named(self, key: bytes | None, place: Place) -> tuple[Any, _Fields] | None:
        """Return the record's Kafka key and the fields of its schema; None if the record has no key.

        The Kafka key contains the source's values. ``before`` contains the table's defaults in place of values that the
        source did not log.
        """
        named, fields = (None, None) if key is None else _unwrap(_parsed(key, place))
        if named is None:
            return None
        if not self._has_key(named):
            _refuse(
                place,
                f"its key in Kafka lacks a column of 'key' ({', '.join(self.key)}), and 'before' may have defaults in"
                " place of the source's values. Set message.key.columns in the connector; or give, as 'key', columns of"
                " the record's key",
            )
        return named, fields

    def _key_of(self, row: Row) -> list[Any]:
        return [value for column, value in zip(self.columns, row.values, strict=True) if column.name in self.key]

    def _has_key(self, values: Any) -> bool:
        return isinstance(values, dict) and all(values.get(name) is not None for name in self.key)

    def _deletion(self, named: tuple[Any, _Fields], position: tuple[int, ...], place: Place) -> Row:
        given, fields = named
        if not self._has_key(given):
            _refuse(
                place,
                f"it deletes a row, and neither 'before' nor the record's key has {', '.join(self.key)}. In PostgreSQL,"
                " give the table a primary key or REPLICA IDENTITY FULL; in the connector, set message.key.columns",
            )
        values = [
            self._value(given[column.name], column, fields, place) if column.name in self.key else None
            for column in self.columns
        ]
        return Row(values, DELETE, self._order(position, DELETE, place), [])

    def _written(self, given: dict[str, Any], fields: _Fields, op: str, position: tuple[int, ...], place: Place) -> Row:
        values, unavailable = list[Any](), list[str]()
        for column in self.columns:
            if column.name not in given and self.missing == "refuse":
                _refuse(
                    place,
                    "the record is older than the column, or the name is another. Leave the column out of 'schema', or"
                    " give missing='null' if null is right for such records",
                    column.name,
                )
            value = given.get(column.name)
            if value is None and column.name in self.key:
                _refuse(place, "the column is one of 'key', and the record has no value for it", column.name)
            if self._is_unavailable(value):
                if column.name in self.key:
                    _refuse(place, "the column is one of 'key', and its value is the placeholder", column.name)
                unavailable.append(column.name)
                value = None
            self._require_own_null(value, column, fields, place)
            values.append(self._value(value, column, fields, place))
        return Row(values, op, self._order(position, op, place), unavailable)

    def _is_unavailable(self, value: Any) -> bool:
        if isinstance(value, list) and len(value) == 1:
            return self._is_unavailable(value[0])
        text = self.unavailable_value
        return value in (text, base64.b64encode(text.encode()).decode(), text.encode().hex())

    def _require_own_null(self, value: Any, column: Column, fields: _Fields, place: Place) -> None:
        of_column = (fields or {}).get(column.name, {})
        if not self.replace_null_with_default or value is None or "default" not in of_column:
            return
        if of_column.get("optional") and value == of_column["default"]:
            _refuse(
                place,
                "it may be null with a default, and Connect's converters replace null by the default unless"
                " value.converter.replace.null.with.default=false (and replace.null.with.default=false of a transform"
                " that flattens). Set that, and give debezium(..., replace_null_with_default=False)",
                column.name,
            )

    def _value(self, value: Any, column: Column, fields: _Fields, place: Place) -> Any:
        if value is None:
            return None
        if fields is not None and column.name not in fields:
            _refuse(place, "the record's schema does not have it", column.name)
        described = None if fields is None else fields[column.name]
        try:
            return decoded(Given(value, column, described, self.decimals))
        except Undecodable as error:
            _refuse(place, str(error), column.name)

    # Order. -----------------------------------------------------------------------------------------------------

    def _order(self, position: tuple[int, ...], op: str, place: Place) -> tuple[int, ...]:
        # Between equal positions, a snapshot's record is older than a change, whatever its time. Ordered by offset, it
        # keeps its place in the topic, as it may come from a new source server.
        is_change = op != "r" or self.order == "offset"
        return (*position, int(is_change), place.offset, place.partition)

    def _position(self, source: Any, place: Place) -> tuple[int, ...]:
        """Return the position of a change in the source's log: three numbers."""
        if self.order == "offset":
            return 0, 0, 0
        source = source if isinstance(source, dict) else {}
        find = _POSITIONS.get(str(source.get("connector")))
        if find is None:
            _refuse(
                place,
                f"the positions of connector {str(source.get('connector'))[:20]!r} are not known. Give order='offset',"
                " which is right if all changes of a key are in one partition, in their order",
            )
        try:
            return find(source)
        except (KeyError, TypeError, ValueError, IndexError):
            _refuse(place, "its 'source' has no position of the log")


def _in_postgres(source: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the later of two positions, the change's own and the end of the transaction committed before it; then the
    change's own.

    Transactions are sent in commit order, so positions may decrease from one change to the next. But every change
    lies before the end of its transaction, and the changes of the next transaction are ordered from that end on. A
    snapshot's row and the first transaction of a new slot have no earlier commit; their own position fits the same
    order. One case remains: a change made before a snapshot's position and committed after it loses to the snapshot's
    row.
    """
    lsn = int(source["lsn"])
    committed = (json.loads(source["sequence"]) if source.get("sequence") else [None])[0]
    return lsn if committed is None else max(int(committed), lsn), lsn, 0


def _in_mysql(source: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the file's number, the position and the row. As text, file names stop sorting when the number gains a
    digit."""
    number = int(str(source["file"]).rpartition(".")[2]) if source.get("file") else -1
    return number, int(source["pos"]), int(source.get("row") or 0)


_POSITIONS: Mapping[str, Callable[[Mapping[str, Any]], tuple[int, ...]]] = {
    "postgresql": _in_postgres,
    "mysql": _in_mysql,
    "mariadb": _in_mysql,
}


def _transaction(payload: Mapping[str, Any]) -> str | None:
    """Return the id of a change's transaction in the source, or None. Only transactions that defer the check of a
    primary key can exchange keys, and the databases with such transactions report the id as ``txId``."""
    source = payload.get("source")
    found = source.get("txId") if isinstance(source, dict) else None
    return None if found is None else str(found)


# JSON. ----------------------------------------------------------------------------------------------------------


def _parsed(text: bytes, place: Place) -> Any:
    try:
        return json.loads(text, parse_float=Number)
    except ValueError:
        _refuse(place, "it is not JSON. Set the connector's converters to Connect's JsonConverter")


def _unwrap(parsed: Any) -> tuple[Any, Any]:
    """Return a record's payload and the fields of its schema by name; None for a record without a schema."""
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"], _fields(parsed["schema"])
    return parsed, None


def _fields(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return None
    return {each.get("field"): each for each in schema.get("fields", ())}


def _nested_fields(fields: Any, name: str) -> Any:
    return None if fields is None else _fields(fields.get(name))


def _refuse(place: Place, why: str, column: str | None = None) -> NoReturn:
    of = "" if column is None else f"column {column!r} of "
    refused = RecordRefused(f"{of}the record at {place} is refused: {why}.", topic=place.topic, column=column)
    raise refused from None  # Python's error, such as of int(), may quote a value of the record
