"""Sinks on their way to the executors, where their distributions may not be installed."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle

from twopc.errors import ConfigurationError
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink


@dataclass(frozen=True)
class PickledSinks:
    """Pickled sinks by name, each with the distribution to install where it can't be loaded.

    Spark unpickles everything that it sends to a task before any code of ours runs. A missing distribution would then
    end the task with the name of a module only.
    """

    _pickled: Mapping[str, tuple[bytes, str]] = field(repr=False)  # a sink may hold credentials

    @classmethod
    def of(cls, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> PickledSinks:
        dumps: Callable[[object], bytes] = cloudpickle.dumps
        return cls({name: (dumps(sink), distribution_of(type(sink))) for name, sink in sinks.items()})

    def loaded(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """Return the sinks, in a task.

        Raises:
            ConfigurationError: a sink can't be loaded here. The message names what to install, and where.
        """
        return {name: _loaded(name, *pickled) for name, pickled in self._pickled.items()}


def _loaded(name: str, pickled: bytes, distribution: str) -> TwoPhaseCommitSink[Any]:
    try:
        sink: TwoPhaseCommitSink[Any] = cloudpickle.loads(pickled)
    except (ImportError, AttributeError) as error:  # not installed, or in another version
        raise ConfigurationError(
            f"sink {name!r} can't be loaded on the executor at {socket.gethostname()} by {sys.executable}:"
            f" {type(error).__name__}: {error}. Install {distribution} into that Python on every executor, as on the"
            " driver."
        ) from error
    return sink


class _HidesPickledTasks(logging.Filter):
    """Drops py4j's DEBUG lines of commands to the JVM that contain pickled tasks: these contain sinks' credentials, in
    base64."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "\nj" not in record.getMessage()  # an argument of bytes, in py4j's protocol


for _logs_commands in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_logs_commands).addFilter(_HidesPickledTasks())
