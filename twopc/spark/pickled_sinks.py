"""Sinks on their way to the executors, where what they are made of may not be installed."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle

from twopc.errors import ConfigurationError
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink


@dataclass(frozen=True)
class Shipped:
    """Pickled sinks by name, each with what is to be installed where it can't be loaded.

    Spark unpickles all that travels to a task before a line of ours runs; what is missing then ends the task with the
    name of a module.
    """

    _pickled: Mapping[str, tuple[bytes, str]] = field(repr=False)  # a sink may hold credentials

    @classmethod
    def of(cls, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> Shipped:
        dumps: Callable[[object], bytes] = cloudpickle.dumps
        return cls({name: (dumps(sink), distribution_of(type(sink))) for name, sink in sinks.items()})

    def arrived(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """The sinks, in a task.

        Raises:
            ConfigurationError: one can't be loaded here; the message says what to install where.
        """
        return {name: _loaded(name, *pickled) for name, pickled in self._pickled.items()}


def _loaded(name: str, pickled: bytes, distribution: str) -> TwoPhaseCommitSink[Any]:
    try:
        sink: TwoPhaseCommitSink[Any] = cloudpickle.loads(pickled)
    except (ImportError, AttributeError) as error:  # not there, or in another version
        raise ConfigurationError(
            f"sink {name!r} can't be loaded on the executor at {socket.gethostname()} by {sys.executable}:"
            f" {type(error).__name__}: {error}. Install {distribution} into that Python on every executor, as on the"
            " driver."
        ) from error
    return sink


def body(task: Callable[[Iterable[Any]], Iterator[Any]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return ``task`` as a function that Spark can unpickle where this package is missing or is another project's. It
    then names the host and what to install: Spark itself would name a module. Pickled by value, as it is nested, so it
    imports within.
    """
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    pickled = dumps(task)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import cloudpickle

        try:
            loaded = cloudpickle.loads(pickled)
        except (ImportError, AttributeError) as error:  # not there, or in another version
            raise missing(error) from error
        yield from loaded(batches)

    def missing(error: Exception) -> ModuleNotFoundError:
        import socket
        import sys
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = f" of this project, but the distribution 'twopc' {version('twopc')} of another: run"
            found += " `pip uninstall twopc twopc-core` there, then"
        except PackageNotFoundError:
            found = ":" if getattr(error, "name", None) == "twopc" else " that can be loaded:"
        return ModuleNotFoundError(  # in the words that the driver looks for
            f"the Python {sys.executable} of the executor at {socket.gethostname()} has no package 'twopc'{found}"
            " install twopc-core and the distributions of the sinks there on every executor, as on the driver."
            f" ({type(error).__name__}: {' '.join(str(error).split())})"
        )

    return run


class _HidesWhatIsShipped(logging.Filter):
    """py4j logs at DEBUG each command to the JVM, with pickled tasks in base64, and in these the sinks' credentials."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "\nj" not in record.getMessage()  # an argument of bytes, in py4j's protocol


for _logs_commands in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_logs_commands).addFilter(_HidesWhatIsShipped())
