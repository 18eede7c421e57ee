"""One sink's transactions in a decision, as JSON, with common parts written once. No I/O.

A batch of 10 000 tasks has 10 000 transactions, which differ in only a few numbers. ``FACTORED_FROM`` or more
transactions become a template, followed by one row per transaction with the values that differ, in the template's
order. A node of the template is one of::

    {"same": value}                     every transaction has this value
    {"starts": text, "ends": text}      texts; the row has the part in between
    {"each": {key: node, ...}}          objects with these keys
    {"each": [node, ...]}               lists of this length
    {}                                  the row has the value
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from twopc.transaction import Committable, JsonValue

FACTORED_FROM = 100
"""The least number of transactions that are factored. Fewer take little space, and are easier to read in full."""

LONGEST_LIST = 4
"""Lists of equal length get a node per item if they have at most this many items. Longer lists mostly differ in length
between transactions."""

MOST_EXPANDED = 256 * 1024 * 1024
"""The greatest product of the template's bytes and its number of rows. No coordinator exceeds it; a greater one would
fill the memory."""

_EACH = "each"

Rows: TypeAlias = "list[JsonValue]"
_Column: TypeAlias = "list[Any]"


def to_json(committables: Sequence[Committable]) -> Rows:
    """Return the transactions in full, or a template followed by rows."""
    plain: Rows = [committable.to_json() for committable in committables]
    if len(plain) < FACTORED_FROM:
        return plain
    columns: list[_Column] = []
    template = _node(plain, columns)
    if _EACH not in template or _expanded(template, len(plain)) > MOST_EXPANDED:
        return plain
    return [template, *map(list, zip(*columns, strict=True))]


def is_factored(value: object) -> bool:
    """Return whether ``value`` begins with a template."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and _EACH in value[0]


def from_json(value: Rows) -> Iterator[Committable]:
    """Parse a value of ``to_json``. Raises ValueError, KeyError, TypeError or AttributeError for any other value."""
    rows: Iterable[Any] = _plain(value) if is_factored(value) else value
    return map(Committable.from_json, rows)


def _node(values: _Column, columns: list[_Column]) -> dict[str, JsonValue]:
    """Return the template's node for the values of all transactions at one place, and append the rows' columns."""
    first, text = values[0], json.dumps(values[0])
    if all(json.dumps(value) == text for value in values):  # compared as text, because 1 == True
        return {"same": first}
    if all(isinstance(value, str) for value in values):
        starts = _shared(values)
        rest = [value[len(starts) :] for value in values]
        ends = _shared([each[::-1] for each in rest])[::-1]
        columns.append([each.removesuffix(ends) for each in rest])
        return {"starts": starts, "ends": ends}
    if isinstance(first, dict) and all(isinstance(value, dict) and [*value] == [*first] for value in values):
        return {_EACH: {key: _node([value[key] for value in values], columns) for key in first}}
    if (
        isinstance(first, list)
        and len(first) <= LONGEST_LIST
        and all(isinstance(value, list) and len(value) == len(first) for value in values)
    ):
        return {_EACH: [_node([*column], columns) for column in zip(*values, strict=True)]}
    columns.append(values)
    return {}


def _shared(texts: Sequence[str]) -> str:
    """Return the longest common prefix of the texts."""
    least, greatest = min(texts), max(texts)
    same = (one == other for one, other in zip(least, greatest, strict=False))
    return least[: sum(itertools.takewhile(bool, same))]


def _plain(value: Rows) -> Iterator[JsonValue]:
    template, rows = value[0], value[1:]
    if _expanded(template, len(rows)) > MOST_EXPANDED:
        raise ValueError(f"no decision takes more than {MOST_EXPANDED} bytes when its rows are expanded")
    columns = _columns(template)
    for row in rows:
        if not isinstance(row, list) or len(row) != columns:
            raise ValueError(f"a row of a decision must be a list of {columns} values")
        yield _value(template, iter(row))


def _expanded(template: JsonValue, rows: int) -> int:
    return len(json.dumps(template)) * rows


def _children(node: Any) -> Iterable[Any]:
    each = node[_EACH]
    return each.values() if isinstance(each, dict) else each


def _columns(node: Any) -> int:
    """Return how many values each row contains for a node. Raises ValueError for an unknown kind of node, which is a
    sign of damage."""
    keys = {*node} if isinstance(node, dict) else None
    if keys == {"same"}:
        return 0
    if keys == set() or (
        keys == {"starts", "ends"} and isinstance(node["starts"], str) and isinstance(node["ends"], str)
    ):
        return 1
    if keys is None or _EACH not in keys or not isinstance(node[_EACH], dict | list):
        raise ValueError(f"a template has no node such as {str(node)[:100]}")
    return sum(map(_columns, _children(node)))


def _value(node: Any, row: Iterator[Any]) -> Any:
    """Return the value at a node, and consume the node's values from ``row``."""
    if _EACH in node:
        each = node[_EACH]
        if isinstance(each, dict):
            return {key: _value(child, row) for key, child in each.items()}
        return [_value(child, row) for child in each]
    if "same" in node:
        return node["same"]
    if "starts" in node:
        return node["starts"] + next(row) + node["ends"]
    return next(row)
