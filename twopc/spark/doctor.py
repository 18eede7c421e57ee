"""``doctor`` for a query. The function takes the same object that the driver passes to Spark, so options are written
only once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from twopc.diagnosis import Diagnosis
from twopc.diagnosis import doctor as diagnosis
from twopc.errors import ConfigurationError
from twopc.log.store import LogStore
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.data_source.options import target_to_check
from twopc.spark.data_source.round import SINK, sink_alone
from twopc.spark.foreach_batch import ForeachBatch


def doctor(writer: ForeachBatch | Mapping[str, Any]) -> Diagnosis:
    """Run all health checks for a query before it starts. See ``twopc.doctor``.

    Args:
        writer: the result of ``foreach_batch``, or the options of a ``format("twopc")`` writer as a dictionary.

    Raises:
        ConfigurationError: an option is missing or wrong.
    """
    return diagnosis(*sinks_and_log(writer))


def sinks_and_log(
    writer: object,
) -> tuple[Mapping[str, TwoPhaseCommitSink[Any]], str | os.PathLike[str] | LogStore | None]:
    """Return the sinks of ``writer`` by name, and its log. The log is None if Spark chooses the checkpoint later.
    Raises ConfigurationError: an option is missing or wrong, or ``writer`` is something else."""
    if isinstance(writer, ForeachBatch):
        settings = writer._settings  # noqa: SLF001  # not part of the public API
        return settings.all_sinks, settings.log
    if isinstance(writer, Mapping):
        backend, own, log = target_to_check(writer)
        return {SINK: sink_alone(backend, own)}, log
    raise ConfigurationError(
        "a query is checked by what foreach_batch returned, or by the options of its format('twopc') writer as a"
        f" dictionary, not by an object of class {type(writer).__name__}"
    )
