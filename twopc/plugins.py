"""Finds backends by name in the entry-point group ``twopc``, and loads each on first use."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from twopc import registry
from twopc.errors import ConfigurationError
from twopc.options import did_you_mean
from twopc.sink import TwoPhaseCommitSink

_OF_DISTRIBUTION = re.compile(r"^twopc[-_](?=.)")
"""The prefix of a backend's distribution or module, before the backend's own name."""


def create_sink(backend: str, options: Mapping[str, Any]) -> TwoPhaseCommitSink[Any]:
    """Return a sink of the backend registered as ``backend``, such as ``kafka`` or ``files``.

    Raises:
        ConfigurationError: there is no such backend, two have that name, it can't be loaded, or an option is wrong.
    """
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"the options of the backend {backend!r} must be a mapping of names to values, not a"
            f" {type(options).__name__}"
        )
    return sink_class(backend)(options)  # type: ignore[call-arg]  # the hook's contract: one argument


def sink_class(backend: str) -> type[TwoPhaseCommitSink[Any]]:
    """Return the sink class of a backend. Raises the same errors as ``create_sink``."""
    entry_point = _find(backend)
    found = registry.load(entry_point, "twopc_sink", f"the backend {backend!r}")
    if not (isinstance(found, type) and issubclass(found, TwoPhaseCommitSink)):
        raise ConfigurationError(
            f"the backend {backend!r} ({registry.origin(entry_point)}) gives {found!r}, which is no TwoPhaseCommitSink"
            " class: its module needs a hook implementation twopc_sink() that returns one"
        )
    return found


def _find(backend: str) -> EntryPoint:
    if found := registry.find(registry.BACKENDS, backend, "backends"):
        return found
    known = registry.names(registry.BACKENDS)
    short = _OF_DISTRIBUTION.sub("", backend)
    hint = did_you_mean(short, known)
    missing = "" if hint else f" Is its distribution, such as twopc-{short}, installed here?"
    raise ConfigurationError(
        f"no backend is named {backend!r}.{hint} Installed: {', '.join(known) or 'none'}.{missing}"
    )


@functools.cache  # it reads metadata from disk for some milliseconds, and is called for every batch
def distribution_of(sink: type[TwoPhaseCommitSink[Any]]) -> str:
    """Return the distribution and version that provide a sink's class, or the module if it has no entry point."""
    module = sink.__module__.partition(".")[0]
    for entry_point in entry_points(group=registry.BACKENDS):
        if entry_point.module.partition(".")[0] == module and entry_point.dist:
            return registry.distribution_name(entry_point.dist)
    return f"the module {sink.__module__}"
