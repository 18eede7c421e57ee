"""The statistics of a file for Delta's log. Readers use the bounds to skip files, so the bounds must never be too
narrow."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

INDEXED_COLUMNS = 32
"""Delta's default for ``delta.dataSkippingNumIndexedCols``."""

_LONGEST_TEXT = 32  # Delta's own writer truncates to this length
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # ``_moments`` adds the zone


def indexed(schema: pa.Schema, configuration: Mapping[str, str]) -> frozenset[str]:
    """Return the columns that get statistics, according to the table's properties."""
    if named := configuration.get("delta.dataSkippingStatsColumns"):
        return frozenset(name.strip().strip("`") for name in named.split(","))
    try:
        most = int(configuration.get("delta.dataSkippingNumIndexedCols", INDEXED_COLUMNS))
    except ValueError:
        most = INDEXED_COLUMNS
    return frozenset(schema.names if most < 0 else schema.names[:most])


@dataclass
class FloatBounds:
    """The bounds of a floating-point column in one file."""

    least: float = math.inf
    most: float = -math.inf
    nulls: int = 0
    is_unbounded: bool = False

    def add(self, values: pa.Array) -> None:
        """Extend the bounds to cover ``values``."""
        self.nulls += values.null_count
        if pc.any(pc.is_nan(values)).as_py():
            self.is_unbounded = True
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            self.least, self.most = min(self.least, found["min"]), max(self.most, found["max"])

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the greatest value. None if the column contains NaN or no value, or if a bound is infinite,
        which JSON can't express."""
        is_bounded = not self.is_unbounded and math.isfinite(self.least) and math.isfinite(self.most)
        # DuckDB distinguishes -0.0 from 0.0 when it skips files. So a lower bound of zero is -0.0, and an upper one is
        # 0.0.
        return (self.least or -0.0, self.most + 0.0) if is_bounded else None


def statistics(
    file: pq.FileMetaData, schema: pa.Schema, columns: Collection[str], floats: Mapping[str, FloatBounds]
) -> str:
    """Return a file's statistics as JSON.

    Args:
        file: the metadata from its footer.
        schema: the file's schema.
        columns: the columns that get statistics.
        floats: the bounds of its floating-point columns, which the footer lacks.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    paths = [file.schema.column(number).path for number in range(file.num_columns)]
    for number, name in enumerate(paths):
        if name not in columns or name not in schema.names or types.is_nested(schema.field(name).type):
            continue
        if paths.count(name) > 1:  # a column "a.b" beside the field b of a column "a"
            continue
        if name in floats:
            nulls[name] = floats[name].nulls
            if (found := floats[name].bounds) is not None:
                low[name], high[name] = found
            continue
        chunks = [file.row_group(group).column(number).statistics for group in range(file.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        valued = [chunk for chunk in chunks if chunk.num_values]
        if not valued or not all(chunk.has_min_max for chunk in valued):
            continue
        bounds = _bounds(valued, schema.field(name).type)
        if bounds is not None:
            low[name], high[name] = bounds
    everything = {
        "numRecords": file.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
        "tightBounds": True,
    }
    return orjson.dumps(everything).decode()


def _bounds(chunks: list[Any], type: pa.DataType) -> tuple[Any, Any] | None:
    """Return the bounds of a column as JSON values; None if they can't be expressed."""
    if types.is_binary(type):
        return None
    try:
        if types.is_date(type) or types.is_timestamp(type):
            least, most = min(c.min_raw for c in chunks), max(c.max_raw for c in chunks)
            return (_day(least), _day(most)) if types.is_date(type) else _moments(least, most, type.tz is not None)
        least, most = min(c.min for c in chunks), max(c.max for c in chunks)
    except (OverflowError, ValueError):  # a year outside of Python's range, or text that is not UTF-8
        return None
    return _as_json(least, most)


def _as_json(least: Any, most: Any) -> tuple[Any, Any] | None:
    match least:
        case Decimal():
            return _number(least), _number(most)
        case str():
            return least[:_LONGEST_TEXT], _text_above(most)
    return least, most


def _number(value: Decimal) -> orjson.Fragment:
    """Return a JSON number with all digits, which a float would lose."""
    return orjson.Fragment(format(value, "f"))


def _day(days: int) -> str:
    return (dt.date(1970, 1, 1) + dt.timedelta(days=days)).isoformat()


def _moments(least_us: int, most_us: int, is_instant: bool) -> tuple[str, str]:
    """Return the bounds of a timestamp column in milliseconds, the precision of Delta's statistics. The bounds are
    rounded outward, because not every reader allows for truncation."""
    ending = "Z" if is_instant else ""
    first, last = least_us // 1000, -(-most_us // 1000)
    return tuple(  # type: ignore[return-value]  # of two
        (_EPOCH + dt.timedelta(milliseconds=ms)).isoformat(timespec="milliseconds") + ending for ms in (first, last)
    )


def _text_above(text: str) -> str:
    """Return an upper bound for ``text``, shortened where possible."""
    # Cut after the limit at a character that can be replaced by a greater one. Without one, the text is its own bound.
    end = next((at for at in range(_LONGEST_TEXT, len(text)) if text[at] != _LAST_CHARACTER), None)
    return text if end is None else text[:end] + _LAST_CHARACTER
