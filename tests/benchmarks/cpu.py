"""CPU time by the processes that used it. It varies far less than time by the clock, in which everything waits for
everything else."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import psutil

BROKER, JVM, PYTHON = "broker", "JVM", "Python"


class Processes:
    """A broker, and another process with its descendants, as they are now. ``pid``: None for this process."""

    def __init__(self, broker_pid: int, pid: int | None = None) -> None:
        of_broker = descent(broker_pid)
        others = [each for each in descent(pid) if each not in of_broker]
        self._parts = [(BROKER, each) for each in of_broker]
        for each in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._parts.append((JVM if "java" in each.name() else PYTHON, each))

    def used_s(self) -> Counter[str]:
        """Return the CPU seconds used so far, by part. A process that has ended counts in its parent."""
        used: Counter[str] = Counter()
        for part, process in self._parts:
            with contextlib.suppress(psutil.NoSuchProcess):
                used[part] += sum(process.cpu_times()[:4])  # user and system, and those of its ended children
        return used


def descent(pid: int | None) -> list[psutil.Process]:
    """Return a process and its descendants. ``pid``: None for this process."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextlib.contextmanager
def cpu_of(broker_pid: int) -> Iterator[Counter[str]]:
    """Yield a counter that has the CPU seconds of the block at its end: of the broker, of other JVMs, and of Python."""
    before, spent = Processes(broker_pid).used_s(), Counter[str]()
    yield spent
    spent.update(Processes(broker_pid).used_s())
    spent.subtract(before)
