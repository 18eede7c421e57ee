"""Entry points of installed distributions, found by name and loaded on demand."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

import pluggy

from twopc import hookspecs
from twopc.errors import ConfigurationError

BACKENDS = hookspecs.PROJECT
"""The entry-point group of backends, by backend name."""

LOG_STORES = f"{hookspecs.PROJECT}.log_stores"
"""The entry-point group of log stores, by URL scheme."""


def names(group: str) -> list[str]:
    """Return the registered names, sorted."""
    return sorted({entry_point.name for entry_point in entry_points(group=group)})


def find(group: str, name: str, kind: str) -> EntryPoint | None:
    """Return the entry point registered as ``name``, or None. ``kind``: a plural noun for errors, such as ``backends``.
    Raises ConfigurationError: two distributions register the name."""
    registered = entry_points(group=group)
    found = {entry_point.value: entry_point for entry_point in registered if entry_point.name == name}
    if len(found) > 1:
        origins = " and ".join(sorted(origin(entry_point) for entry_point in found.values()))
        raise ConfigurationError(f"two {kind} are named {name!r}: {origins}. Uninstall one of them.")
    return next(iter(found.values()), None)


def load(entry_point: EntryPoint, hook: str, what: str) -> Any:
    """Return the result of the module's implementation of ``hook``; None if the module does not implement it. ``what``:
    the module's name in errors. Raises ConfigurationError: the module can't be loaded."""
    manager = hook_manager()
    try:
        manager.register(entry_point.load(), name=entry_point.name)
        return getattr(manager.hook, hook)()
    except Exception as error:
        raise ConfigurationError(
            f"{what} ({origin(entry_point)}) can't be loaded: {type(error).__name__}: {error}."
            " Install or repair that distribution."
        ) from error


def hook_manager() -> pluggy.PluginManager:
    """Return a new manager with the hooks of twopc."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def origin(entry_point: EntryPoint) -> str:
    """Return the distribution, its version and the module, for errors."""
    name = distribution_name(entry_point.dist) if entry_point.dist else "an unknown distribution"
    return f"{name}: {entry_point.value}"


def distribution_name(distribution: Distribution) -> str:
    """Return the name and version of a distribution."""
    return f"{distribution.name} {distribution.version}"
