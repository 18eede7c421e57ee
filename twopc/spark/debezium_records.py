"""Records of Debezium as rows of a table. This module needs no Spark.

Debezium's encodings are values, too: a ``numeric`` may be the bytes of an integer whose scale is in the record's schema
alone, and a time is a number of days, milliseconds, microseconds or nanoseconds by the column's precision. Each is
decoded exactly by the schema that comes with the record, or refused with the connector's setting that repairs it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any, NamedTuple, NoReturn, TypeAlias

from twopc.errors import RecordRefused

UNAVAILABLE = "__debezium_unavailable_value"
"""What the connector sends for a large value that did not change, by default (``unavailable.value.placeholder``)."""

_Fields: TypeAlias = "Mapping[str, Mapping[str, Any]] | None"
"""What the schema of a record has for each field; None if the record has no schema."""

WRITES = ("c", "r", "u")
DELETE, TRUNCATE, MESSAGE = "d", "t", "m"

_SCHEMAS = "value.converter.schemas.enable=true and key.converter.schemas.enable=true"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_ISO = re.compile(
    r"(?P<seconds>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_ISO_DATE = re.compile(r"(\d{4}-\d\d-\d\d)Z?")


@dataclass(frozen=True)
class Column:
    """A column of the source's table."""

    name: str
    kind: str  # one of ``_DECODERS``
    bits: int = 64  # of an integer or a floating-point number
    digits: tuple[int, int] = (0, 0)  # precision and scale of a decimal
    elements: Column | None = None  # what an array consists of


class Row(NamedTuple):
    """A change that a record stands for."""

    values: Sequence[Any]  # by column; of a delete, null beside the key
    op: str  # ``c``, ``u``, ``r`` (of a snapshot), ``d``, or ``t`` for a truncate
    order: tuple[int, ...]  # increases with the changes of a key
    unavailable: Sequence[str]  # the columns of which the record has no value
    moved: str | None = None  # the source's transaction, if the record is a half of a change of a primary key


class Place(NamedTuple):
    """Where a record is."""

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
        """Yield what a record does to the table: nothing, a change, or a delete and a change of two keys. ``is_moved``:
        whether its headers mark it as a half of a change of a primary key, which is sent as a delete of the old key and
        an insert of the new one. Raises RecordRefused: it can't be decoded exactly, or has no place in the order of
        changes."""
        if value is None:
            yield from self._of_tombstone(key, place)
            return
        payload, schema = _unwrapped(_parsed(value, place))
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
        named, before = self._named(key, place), (payload.get("before"), _within(schema, "before"))
        if op == DELETE:
            yield self._deletion(named or before, position, place)
            return
        after = payload.get("after")
        if not isinstance(after, dict):
            _refuse(place, f"its operation is {op!r}, and it has no 'after'")
        row = self._written(after, _within(schema, "after"), op, position, place)
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
        """Return the key that the record has in Kafka, and the fields of its schema; None if it has none.

        It is the source's, while ``before`` has defaults of the table in place of what the source's log does not have.
        """
        named, fields = (None, None) if key is None else _unwrapped(_parsed(key, place))
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
            return decoded(value, column, described, self.decimals)
        except Undecodable as error:
            _refuse(place, str(error), column.name)

    # Order. -----------------------------------------------------------------------------------------------------

    def _order(self, position: tuple[int, ...], op: str, place: Place) -> tuple[int, ...]:
        # Where positions of the log can't decide, a record of a snapshot is older than a change, whatever its time is.
        # By offsets alone, it has its place in the topic: it may be of a new source server.
        is_change = op != "r" or self.order == "offset"
        return (*position, int(is_change), place.offset, place.partition)

    def _position(self, source: Any, place: Place) -> tuple[int, ...]:
        """Return where the source's log has a change: three numbers."""
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
    """Return the change's own position, or the end of the last transaction that was committed before if that is later;
    then its own position.

    Transactions are sent in the order of their commits, so positions of changes go up and down. No change is later than
    the end of its transaction, and the next transaction begins there in this order. A snapshot's row and the first
    transaction of a new slot have no earlier commit, and their own position is in the same order. One case remains: a
    change that was made before a snapshot's position, and committed after it, loses to the snapshot's row.
    """
    lsn = int(source["lsn"])
    committed = (json.loads(source["sequence"]) if source.get("sequence") else [None])[0]
    return lsn if committed is None else max(int(committed), lsn), lsn, 0


def _in_mysql(source: Mapping[str, Any]) -> tuple[int, ...]:
    """The file's number, as names stop sorting as text when it gets another digit; then position and row."""
    number = int(str(source["file"]).rpartition(".")[2]) if source.get("file") else -1
    return number, int(source["pos"]), int(source.get("row") or 0)


_POSITIONS: Mapping[str, Callable[[Mapping[str, Any]], tuple[int, ...]]] = {
    "postgresql": _in_postgres,
    "mysql": _in_mysql,
    "mariadb": _in_mysql,
}


def _transaction(payload: Mapping[str, Any]) -> str | None:
    """Return the transaction of a change, from sources whose databases may check a primary key at its end."""
    source = payload.get("source")
    found = source.get("txId") if isinstance(source, dict) else None
    return None if found is None else str(found)


# JSON. ----------------------------------------------------------------------------------------------------------


def _parsed(text: bytes, place: Place) -> Any:
    try:
        return json.loads(text, parse_float=_Number)
    except ValueError:
        _refuse(place, "it is not JSON. Set the connector's converters to Connect's JsonConverter")


class _Number(str):
    """A number with a fraction or an exponent, as the record spells it."""

    __slots__ = ()


def _unwrapped(parsed: Any) -> tuple[Any, Any]:
    """Return what a record has, and the fields of its schema by name; None if it has no schema."""
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"], _fields(parsed["schema"])
    return parsed, None


def _fields(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return None
    return {each.get("field"): each for each in schema.get("fields", ())}


def _within(fields: Any, name: str) -> Any:
    return None if fields is None else _fields(fields.get(name))


def _refuse(place: Place, why: str, column: str | None = None) -> NoReturn:
    of = "" if column is None else f"column {column!r} of "
    raise RecordRefused(f"{of}the record at {place} is refused: {why}.", topic=place.topic, column=column)


# Values. --------------------------------------------------------------------------------------------------------


class Undecodable(Exception):
    """A value can't be decoded exactly. The message says what repairs it, and no value."""


def decoded(value: Any, column: Column, described: Mapping[str, Any] | None, decimals: str = "precise") -> Any:
    """Return a value of JSON as Arrow takes it for the column: days since 1970 for a date, microseconds for a
    timestamp. ``described`` is what the record's schema has for it; None if the record has no schema, when ``decimals``
    is ``string`` if the connector sends decimals as text. Raises Undecodable: the value does not fit the column
    exactly, or only the schema could tell what it means."""
    return _DECODERS[column.kind](value, column, described, decimals)


def _boolean(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong("BOOLEAN", value, described)


def _integer(value: Any, column: Column, described: Mapping[str, Any] | None, _: str) -> int:
    plain = described is None or described.get("name") is None
    if isinstance(value, int) and not isinstance(value, bool) and plain:
        if -(1 << (column.bits - 1)) <= value < 1 << (column.bits - 1):
            return value
        raise Undecodable(f"the number does not fit into {column.bits} bits: declare a wider type")
    raise _wrong("an integer", value, described)


def _float(value: Any, column: Column, described: Mapping[str, Any] | None, _: str) -> float:
    name, type_ = (described or {}).get("name"), (described or {}).get("type")
    declared, wider = ("FLOAT", "DOUBLE") if column.bits == 32 else ("DOUBLE", "BIGINT or DECIMAL")
    if not isinstance(value, int | float | _Number) or isinstance(value, bool) or name is not None:
        raise _wrong(declared, value, described)
    if column.bits == 32 and type_ == "double":
        raise _wrong(declared, value, described)
    if isinstance(value, float):  # NaN or an infinity
        return value
    rounds = Undecodable(f"{declared} may not have the number exactly: declare {wider}")
    try:
        number = float(value)
        kept = number if column.bits == 64 else struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        raise rounds from None
    # The text of a 32-bit number, such as 0.1, is a short one of the value: only the schema tells that.
    is_short = type_ == "float" and isinstance(value, _Number)
    if math.isinf(kept) or (kept != number and not is_short) or (isinstance(value, int) and int(kept) != value):
        raise rounds
    return number


def _text(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> str:
    name = (described or {}).get("name")
    if described is not None and described.get("type") == "bytes":
        raise _wrong("STRING", value, described)
    if name in _OF_DAY and isinstance(value, int):
        return _time_of_day(value, _OF_DAY[name])
    if isinstance(value, str) and not isinstance(value, _Number):
        return value
    raise _wrong("STRING", value, described)


_OF_DAY = {
    "io.debezium.time.Time": 10**6,
    "org.apache.kafka.connect.data.Time": 10**6,
    "io.debezium.time.MicroTime": 10**3,
    "io.debezium.time.NanoTime": 1,
}
"""A time of the day by its name in the schema → its unit in nanoseconds."""


def _time_of_day(value: int, unit_ns: int) -> str:
    """Return a time as databases write it: without zeros at the end of the fraction."""
    seconds, ns = divmod(value * unit_ns, 10**9)
    fraction = f".{ns:09}".rstrip("0").rstrip(".")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _bytes(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> bytes:
    if described is None:
        raise Undecodable(
            f"without its schema, nothing tells base64 from hexadecimal: set {_SCHEMAS} in the connector, or declare"
            " STRING"
        )
    if described.get("type") == "bytes" and described.get("name") is None and isinstance(value, str):
        return _unbased(value)
    raise _wrong("BINARY", value, described)


def _unbased(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Undecodable("it is not base64: set binary.handling.mode=bytes in the connector") from None


_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])


def _decimal(value: Any, column: Column, described: Mapping[str, Any] | None, decimals: str) -> Decimal:
    name, type_ = (described or {}).get("name"), (described or {}).get("type")
    if name == _DECIMAL and isinstance(value, str):
        number = _scaled(value, described["parameters"]["scale"])  # type: ignore[index]  # it has a name
    elif name == _VARIABLE and isinstance(value, dict):
        number = _scaled(value["value"], value["scale"])
    elif type(value) is int and name is None:
        number = Decimal(value)
    elif type(value) is str and (type_ == "string" if described is not None else decimals == "string"):
        number = _spelled(value)
    elif type(value) is str and described is None:
        raise Undecodable(
            f"without its schema, nothing tells the scale of a decimal: set {_SCHEMAS} in the connector; or"
            " decimal.handling.mode=string there, and give debezium(..., decimals='string')"
        )
    else:
        raise _wrong("DECIMAL", value, described)
    precision, scale = column.digits
    try:
        exactly = Context(prec=precision, traps=[Inexact, InvalidOperation])
        return number.quantize(Decimal((0, (1,), -scale)), context=exactly)
    except (Inexact, InvalidOperation):  # such as for 999.995 in DECIMAL(5,2), which rounding would make too large
        if int(number.normalize(_EXACT).as_tuple().exponent) < -scale:
            text = f"the number has more than {scale} digits after the point: declare a larger scale"
        else:
            text = f"the number does not fit into DECIMAL({precision},{scale}): declare a larger precision"
        raise Undecodable(text) from None


def _scaled(text: str, scale: str | int) -> Decimal:
    unscaled = int.from_bytes(_unbased(text), "big", signed=True)
    return Decimal(unscaled).scaleb(-int(scale), _EXACT)  # no text, of which Python bounds the digits of an integer


def _spelled(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise Undecodable("it is no finite number: declare STRING, or filter such rows at the source")
    return number


def _date(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> int:
    name = (described or {}).get("name")
    is_of_days = name in (None, "io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
    if isinstance(value, int) and not isinstance(value, bool) and is_of_days:
        if _FIRST_DAY <= value <= _LAST_DAY:
            return value
        raise Undecodable("it is a day outside of the years 1 to 9999")
    if isinstance(value, str) and (found := _ISO_DATE.fullmatch(value)) and name in (None, "io.debezium.time.IsoDate"):
        try:
            return (date.fromisoformat(found[1]) - _EPOCH.date()).days
        except ValueError:
            raise Undecodable("it is no date of the years 1 to 9999") from None
    raise _wrong("DATE", value, described)


_NANOS = {
    "io.debezium.time.Timestamp": 10**6,
    "org.apache.kafka.connect.data.Timestamp": 10**6,
    "io.debezium.time.MicroTimestamp": 10**3,
    "io.debezium.time.NanoTimestamp": 1,
}
"""A timestamp without a zone by its name in the schema → its unit in nanoseconds."""


def _timestamp_ntz(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> int:
    name = (described or {}).get("name")
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _NANOS:
            return _micros(value * _NANOS[name])
        if described is None:
            raise Undecodable(
                f"without its schema, nothing tells the unit of a timestamp: set {_SCHEMAS} in the connector, or"
                " time.precision.mode=isostring"
            )
    if isinstance(value, str) and name in (None, "io.debezium.time.IsoTimestamp"):
        return _of_iso(value)
    raise _wrong("TIMESTAMP_NTZ", value, described)


def _timestamp(value: Any, _: Column, described: Mapping[str, Any] | None, __: str) -> int:
    name = (described or {}).get("name")
    if isinstance(value, str) and name in (None, "io.debezium.time.ZonedTimestamp"):
        if (found := _ISO.fullmatch(value)) and found["zone"]:
            return _of_iso(value)
        raise Undecodable("it is no timestamp with a zone: declare TIMESTAMP_NTZ")
    if name in _NANOS:
        raise Undecodable("the source's column has no zone: declare TIMESTAMP_NTZ")
    raise _wrong("TIMESTAMP", value, described)


def _of_iso(text: str) -> int:
    found = _ISO.fullmatch(text)
    if found is None:
        raise Undecodable("it is no timestamp of the years 1 to 9999 in ISO 8601")
    zone = (found["zone"] or "Z").replace("Z", "+0000")
    try:
        instant = datetime.fromisoformat(f"{found['seconds']}{zone[:3]}:{zone[-2:]}")
    except ValueError:
        raise Undecodable("it is no timestamp of the years 1 to 9999") from None
    seconds = (instant - _EPOCH) // timedelta(seconds=1)
    return _micros(seconds * 10**9 + int((found["fraction"] or "0").ljust(9, "0")))


def _micros(ns: int) -> int:
    micros, rest = divmod(ns, 1000)
    if rest:
        raise Undecodable("it has nanoseconds, which Spark's timestamps don't keep: declare BIGINT or STRING")
    if not _FIRST_DAY * 86_400_000_000 <= micros < (_LAST_DAY + 1) * 86_400_000_000:
        raise Undecodable("it is a time outside of the years 1 to 9999")
    return micros


def _array(value: Any, column: Column, described: Mapping[str, Any] | None, decimals: str) -> list[Any]:
    assert column.elements is not None
    if not isinstance(value, list):
        raise _wrong("ARRAY", value, described)
    items = None if described is None else described.get("items")
    return [None if each is None else decoded(each, column.elements, items, decimals) for each in value]


def _wrong(declared: str, value: Any, described: Mapping[str, Any] | None) -> Undecodable:
    """Return the error for a value of another kind than the declared one."""
    name, type_ = (described or {}).get("name"), (described or {}).get("type")
    kind = name or type_ or ("number" if isinstance(value, int | _Number) else type(value).__name__)
    if name in (_DECIMAL, _VARIABLE):
        return Undecodable(f"it is a {name}, and {declared} was declared: declare DECIMAL")
    if declared == "DECIMAL" and (type_ == "double" or isinstance(value, _Number | float)):
        return Undecodable(
            "it is a floating-point number, which may differ from the source's decimal: set"
            " decimal.handling.mode=precise or string in the connector, or declare DOUBLE"
        )
    return Undecodable(f"it is of type {kind}, and {declared} was declared: declare another type")


_DECODERS: Mapping[str, Callable[[Any, Column, Mapping[str, Any] | None, str], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "float": _float,
    "text": _text,
    "bytes": _bytes,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "array": _array,
}
