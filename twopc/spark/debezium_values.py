"""Values in Debezium records as Arrow values: decoded exactly, or refused. Needs no Spark.

Many of Debezium's encodings are ambiguous without the record's schema: a ``numeric`` may be the bytes of an integer
whose scale only the schema contains, and a time may be a number of days, milliseconds, microseconds or nanoseconds.
Each value is decoded by the schema in its record, or refused with advice on the connector's setting.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

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
    bits: int = 64  # the size of an integer or a floating-point number
    digits: tuple[int, int] = (0, 0)  # precision and scale of a decimal
    elements: Column | None = None  # the elements of an array


class Number(str):
    """The text of a JSON number that has a fraction or an exponent."""

    __slots__ = ()


class Undecodable(Exception):
    """A value can't be decoded exactly. The message contains advice, but not the value."""


@dataclass(frozen=True, slots=True)
class Given:
    """A JSON value, its column and its schema."""

    value: Any
    column: Column
    described: Mapping[str, Any] | None  # the value's part of the record's schema; None if the record has none
    decimals: str  # in a record without a schema, ``string`` if the connector sends decimals as text

    @property
    def name(self) -> str | None:
        """The name of the value's type in the schema, such as ``io.debezium.time.Date``."""
        return (self.described or {}).get("name")

    @property
    def type(self) -> str | None:
        """The type of the value in the schema, such as ``int32``."""
        return (self.described or {}).get("type")


def decoded(given: Given) -> Any:
    """Return the Arrow value for a column: days since 1970 for a date, microseconds for a timestamp. Raises
    Undecodable: the value does not fit the column exactly, or is ambiguous without a schema."""
    return _DECODERS[given.column.kind](given)


def _boolean(given: Given) -> bool:
    if isinstance(given.value, bool):
        return given.value
    raise _wrong_type("BOOLEAN", given)


def _integer(given: Given) -> int:
    value, bits = given.value, given.column.bits
    if type(value) is not int or given.name not in (None, "io.debezium.time.Year"):
        raise _wrong_type("an integer", given)
    if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        return value
    raise Undecodable(f"the number does not fit into {bits} bits: declare a wider type")


def _float(given: Given) -> float:
    value, is_single = given.value, given.column.bits == 32
    declared, wider = ("FLOAT", "DOUBLE") if is_single else ("DOUBLE", "BIGINT or DECIMAL")
    is_number = isinstance(value, int | float | Number) and not isinstance(value, bool)
    if not is_number or given.name is not None or (is_single and given.type == "double"):
        raise _wrong_type(declared, given)
    if isinstance(value, float):  # NaN or an infinity
        return value
    rounds = Undecodable(f"{declared} may not have the number exactly: declare {wider}")
    try:
        number = float(value)
        kept = struct.unpack("f", struct.pack("f", number))[0] if is_single else number
    except OverflowError:
        raise rounds from None
    # The shortest text of a 32-bit number, such as 0.1, is not its exact value. Only the schema shows the size.
    is_short = given.type == "float" and isinstance(value, Number)
    if math.isinf(kept) or (kept != number and not is_short) or (isinstance(value, int) and int(kept) != value):
        raise rounds
    return number


def _text(given: Given) -> str:
    value = given.value
    if isinstance(value, int) and given.type != "bytes" and given.name in _OF_DAY:
        return _time_of_day(value, _OF_DAY[given.name])
    if type(value) is str and given.type != "bytes":
        _require_whole(value)
        return value
    raise _wrong_type("STRING", given)


def _require_whole(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Undecodable("it has half a surrogate pair, which is no text: correct the row in the source") from None


_OF_DAY = {
    "io.debezium.time.Time": 10**6,
    "org.apache.kafka.connect.data.Time": 10**6,
    "io.debezium.time.MicroTime": 10**3,
    "io.debezium.time.NanoTime": 1,
}
"""The name of a type for times of day in the schema → its unit in nanoseconds."""


def _time_of_day(value: int, unit_ns: int) -> str:
    """Return a time as databases write it, without trailing zeros."""
    seconds, ns = divmod(value * unit_ns, 10**9)
    fraction = f".{ns:09}".rstrip("0").rstrip(".")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _bytes(given: Given) -> bytes:
    if given.described is None:
        raise Undecodable(
            f"without its schema, nothing tells base64 from hexadecimal: set {_SCHEMAS} in the connector, or declare"
            " STRING"
        )
    if given.type == "bytes" and given.name is None and isinstance(given.value, str):
        return _from_base64(given.value)
    raise _wrong_type("BINARY", given)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Undecodable("it is not base64: set binary.handling.mode=bytes in the connector") from None


_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])


def _decimal(given: Given) -> Decimal:
    value, described, name = given.value, given.described, given.name
    if name == _DECIMAL and isinstance(value, str):
        number = _from_unscaled(value, described["parameters"]["scale"])  # type: ignore[index]  # it has a name
    elif name == _VARIABLE and isinstance(value, dict):
        number = _from_unscaled(value["value"], value["scale"])
    elif type(value) is int and name is None:
        number = Decimal(value)
    elif type(value) is str and (given.type == "string" if described is not None else given.decimals == "string"):
        number = _from_text(value)
    elif type(value) is str and described is None:
        raise Undecodable(
            f"without its schema, nothing tells the scale of a decimal: set {_SCHEMAS} in the connector; or"
            " decimal.handling.mode=string there, and give debezium(..., decimals='string')"
        )
    else:
        raise _wrong_type("DECIMAL", given)
    precision, scale = given.column.digits
    try:
        exactly = Context(prec=precision, traps=[Inexact, InvalidOperation])
        return number.quantize(Decimal((0, (1,), -scale)), context=exactly)
    except (Inexact, InvalidOperation):  # also raised for 999.995 in DECIMAL(5,2), as rounding overflows
        if int(number.normalize(_EXACT).as_tuple().exponent) < -scale:
            text = f"the number has more than {scale} digits after the point: declare a larger scale"
        else:
            text = f"the number does not fit into DECIMAL({precision},{scale}): declare a larger precision"
        raise Undecodable(text) from None


def _from_unscaled(text: str, scale: str | int) -> Decimal:
    unscaled = int.from_bytes(_from_base64(text), "big", signed=True)
    return Decimal(unscaled).scaleb(-int(scale), _EXACT)  # not by text, whose digits Python limits


def _from_text(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise Undecodable("it is no finite number: declare STRING, or filter such rows at the source")
    return number


def _date(given: Given) -> int:
    value, name = given.value, given.name
    is_plain = name is None and given.described is None
    if type(value) is int and (is_plain or name in ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")):
        if _FIRST_DAY <= value <= _LAST_DAY:
            return value
        raise Undecodable("it is a day outside of the years 1 to 9999")
    if isinstance(value, str) and (found := _ISO_DATE.fullmatch(value)) and name in (None, "io.debezium.time.IsoDate"):
        try:
            return (date.fromisoformat(found[1]) - _EPOCH.date()).days
        except ValueError:
            raise Undecodable("it is no date of the years 1 to 9999") from None
    raise _wrong_type("DATE", given)


_NANOS = {
    "io.debezium.time.Timestamp": 10**6,
    "org.apache.kafka.connect.data.Timestamp": 10**6,
    "io.debezium.time.MicroTimestamp": 10**3,
    "io.debezium.time.NanoTimestamp": 1,
}
"""The name of a type for timestamps without a zone in the schema → its unit in nanoseconds."""


def _timestamp_ntz(given: Given) -> int:
    value, name = given.value, given.name
    if type(value) is int:
        if name in _NANOS:
            return _micros(value * _NANOS[name])
        if given.described is None:
            raise Undecodable(
                f"without its schema, nothing tells the unit of a timestamp: set {_SCHEMAS} in the connector, or"
                " time.precision.mode=isostring"
            )
    if isinstance(value, str) and name in (None, "io.debezium.time.IsoTimestamp"):
        return _from_iso(value)
    raise _wrong_type("TIMESTAMP_NTZ", given)


def _timestamp(given: Given) -> int:
    value, name = given.value, given.name
    if isinstance(value, str) and name in (None, "io.debezium.time.ZonedTimestamp"):
        if (found := _ISO.fullmatch(value)) and found["zone"]:
            return _from_iso(value)
        raise Undecodable("it is no timestamp with a zone: declare TIMESTAMP_NTZ")
    if name in _NANOS:
        raise Undecodable("the source's column has no zone: declare TIMESTAMP_NTZ")
    raise _wrong_type("TIMESTAMP", given)


def _from_iso(text: str) -> int:
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


def _array(given: Given) -> list[Any]:
    assert given.column.elements is not None
    if not isinstance(given.value, list):
        raise _wrong_type("ARRAY", given)
    items = None if given.described is None else given.described.get("items")
    of_element = replace(given, column=given.column.elements, described=items)
    return [None if each is None else decoded(replace(of_element, value=each)) for each in given.value]


def _wrong_type(declared: str, given: Given) -> Undecodable:
    """Return the error for a value whose type is not the declared one."""
    value, name = given.value, given.name
    kind = name or given.type or ("number" if isinstance(value, int | Number) else type(value).__name__)
    if name in (_DECIMAL, _VARIABLE):
        return Undecodable(f"it is a {name}, and {declared} was declared: declare DECIMAL")
    if declared == "DECIMAL" and (given.type == "double" or isinstance(value, Number | float)):
        return Undecodable(
            "it is a floating-point number, which may differ from the source's decimal: set"
            " decimal.handling.mode=precise or string in the connector, or declare DOUBLE"
        )
    return Undecodable(
        f"it is of type {kind}, and {declared} was declared: declare another type, or leave the column out"
    )


_DECODERS: Mapping[str, Callable[[Given], Any]] = {
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
