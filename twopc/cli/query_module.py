"""Loads a query from its own program, named as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.log.store import LogStore
from twopc.sink import TwoPhaseCommitSink

_WHAT = (
    "NAME is what foreach_batch returned, the dictionary of a format('twopc') writer's options, or a function without"
    " arguments that returns one of these"
)


def read_query(
    where: str,
) -> tuple[Mapping[str, TwoPhaseCommitSink[Any]], str | os.PathLike[str] | LogStore | None]:
    """Import a query's module, which may be in the current folder, and return its sinks by name and its log. Raises
    ConfigurationError: the module can't be imported, or has no such query."""
    module, _, name = where.partition(":")
    if not module or not name:
        raise ConfigurationError(f"--query takes MODULE:NAME, such as jobs.orders:write, not {where!r}. {_WHAT}.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  # import ignores a Path
    try:
        from twopc.spark.doctor import sinks_and_log
        from twopc.spark.foreach_batch import ForeachBatch

        writer = attrgetter(name)(importlib.import_module(module))
        if callable(writer) and not isinstance(writer, ForeachBatch):
            writer = writer()
        return sinks_and_log(writer)
    except TwoPhaseCommitError:
        raise
    except (Exception, SystemExit) as error:  # the user's module may raise anything, or exit
        raise ConfigurationError(
            f"the query {where!r} can't be loaded: {type(error).__name__}: {error}. {_WHAT}. The module must be"
            " importable from the current folder without starting the query; start it under"
            " `if __name__ == '__main__':`."
        ) from error
