"""CPU time of a turn, by the processes that used it. It varies far less than time by the clock, in which everything
waits for everything else."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping

import psutil

BROKER, JVM, PYTHON = "broker", "JVM", "Python"


@contextlib.contextmanager
def cpu_of(broker_pid: int) -> Iterator[Counter[str]]:
    """Yield a counter that has the CPU seconds of the block at its end: of the broker, of other JVMs, and of Python."""
    before, spent = _used_s(broker_pid), Counter[str]()
    yield spent
    spent.update(_used_s(broker_pid))
    spent.subtract(before)


def _used_s(broker_pid: int) -> Mapping[str, float]:
    """Return what this process and its descendants have used so far. A process that has ended counts in its parent."""
    used: Counter[str] = Counter()
    of_broker = {broker_pid, *(child.pid for child in psutil.Process(broker_pid).children(recursive=True))}
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            part = BROKER if process.pid in of_broker else JVM if "java" in process.name() else PYTHON
            used[part] += sum(process.cpu_times()[:4])  # user and system, and those of its ended children
    return used
