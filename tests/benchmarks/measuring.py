"""A benchmark's result: all its values, never only the best."""

import multiprocessing
import re
import stat
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.campaigns.seams import Seam, patched

ResultT = TypeVar("ResultT")

ALONE_AT_MOST_S = 1800
"""A process that the system has ended for its memory never answers."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured quantity.

    Attributes:
        unit: the unit; ``ratio`` for one contestant divided by another in the same turn.
        key: its key at the top level of the report, if it has one.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    key: str | None = None

    @property
    def spread(self) -> tuple[float, float, float]:
        """The minimum, median and maximum."""
        return min(self.values), statistics.median(self.values), max(self.values)

    def to_json(self) -> dict[str, object]:
        minimum, median, maximum = self.spread
        return {
            "what": self.what,
            "unit": self.unit,
            "minimum": minimum,
            "median": median,
            "maximum": maximum,
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """A contestant's result.

    Attributes:
        rate: the records per second, in a steady batch if there are batches.
        cpu_us: the CPU time per record, by the part that used it; see ``Processes``.
    """

    rate: float
    cpu_us: Mapping[str, float]


def in_turns(
    contestants: Mapping[str, Callable[[], ResultT]], turns: int, before_each: Callable[[], object] = lambda: None
) -> dict[str, list[ResultT]]:
    """Measure each contestant in each turn. Return contestant → its results. Each turn begins with a different one.

    Prints a line per turn with the time that the other turns will take.
    """
    figures: dict[str, list[ResultT]] = {name: [] for name in contestants}
    began_s = time.monotonic()
    for turn in range(turns):
        before_each()
        names = [*figures]
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            figures[name].append(contestants[name]())
        left_s = (time.monotonic() - began_s) / (turn + 1) * (turns - turn - 1)
        print(f"  turn {turn + 1} of {turns}; {left_s / 60:.1f} minutes to go", flush=True)  # noqa: T201  # the progress
    return figures


def ratio(what: str, figures: Mapping[str, Sequence[float]], one: str, other: str, key: str | None = None) -> Row:
    """Return the ratio of two contestants, turn by turn."""
    return Row(what, "ratio", tuple(a / b for a, b in zip(figures[one], figures[other], strict=True)), key)


def alone(measured: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns in a process of its own, which returns its memory to the system with its end."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(measured, arguments).get(ALONE_AT_MOST_S)


def peak_mib(pid: int | str = "self") -> float:
    """Return the peak memory of a process. ``getrusage`` would return the parent's peak if that was higher."""
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


def held() -> Counter[str]:
    """Return what this process holds: threads, descriptors, and those of them that are sockets."""
    are_sockets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # such as that of the listing itself
            are_sockets.append(stat.S_ISSOCK(descriptor.stat().st_mode))
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    return Counter(threads=threads, descriptors=len(are_sockets), sockets=sum(are_sockets))


def counted(where: str, kind: Callable[..., str], counts: Counter[str]) -> AbstractContextManager[None]:
    """Return a context in which the calls of a function are counted, by what ``kind`` returns for their arguments.

    Args:
        where: the function, as a ``Seam`` has it.
        kind: gets the arguments of each call.
        counts: the counter.
    """

    def counting(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        counts[kind(*arguments, **named)] += 1
        return real(*arguments, **named)

    return patched([Seam(where, counting)])
