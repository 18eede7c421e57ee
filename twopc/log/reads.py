"""What a batch read: kept with its decision, and compared when the batch comes again. No I/O.

A batch's number does not identify it. A query whose checkpoint lost its newest files plans the same number again, from
other offsets; taken for the decided batch, the records in between would be lost. The core compares what was read as
JSON and does not know what it means: Spark's complete offset log entry, or whatever a plain loop gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twopc.transaction import JsonValue

ABSENT = "nothing"
"""What stands in a message for a side that lacks the value."""

_SHOWN = 10  # differences in one message


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the two sides differ. ``decided`` and ``now`` are JSON, or ``ABSENT`` as text."""

    path: str
    decided: JsonValue
    now: JsonValue

    def __str__(self) -> str:
        text = f"{self.path or 'it'}: decided {_text(self.decided)}, now {_text(self.now)}"
        if _is_number(self.decided) and _is_number(self.now):
            text += f" ({self.now - self.decided:+})"  # type: ignore[operator]  # both are numbers
        return text


def differences(decided: JsonValue, now: JsonValue, path: str = "") -> Iterator[Difference]:
    """Every leaf at which two JSON values differ, by its path, such as ``sources.0.orders.3``."""
    if decided == now:
        return
    if isinstance(decided, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*decided, *now]):
            yield from differences(decided.get(key, ABSENT), now.get(key, ABSENT), _below(path, key))
    elif isinstance(decided, list) and isinstance(now, list):
        for index in range(max(len(decided), len(now))):
            before, after = (side[index] if index < len(side) else ABSENT for side in (decided, now))
            yield from differences(before, after, _below(path, str(index)))
    else:
        yield Difference(path, decided, now)


def told(found: Sequence[Difference]) -> str:
    """The first differences, for a message; and in all, how far apart what is numbered is, such as partitions."""
    rest = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    sums = (f"; {path}: {sum(apart):+} in all" for path, apart in _numbered(found).items() if len(apart) > 1)
    return "; ".join(map(str, found[:_SHOWN])) + rest + "".join(sums)


def _numbered(found: Sequence[Difference]) -> dict[str, list[float]]:
    """How far apart the two sides are at each number below a path."""
    apart: dict[str, list[float]] = {}
    for each in found:
        path, _, key = each.path.rpartition(".")
        if key.isdecimal() and _is_number(each.decided) and _is_number(each.now):
            apart.setdefault(path, []).append(each.now - each.decided)  # type: ignore[operator]  # both are numbers
    return apart


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: JsonValue) -> str:
    text = ABSENT if value == ABSENT else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
