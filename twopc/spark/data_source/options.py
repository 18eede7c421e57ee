"""The options of ``format("twopc")``: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twopc.checkpoint.folder import CheckpointFolder, url
from twopc.coordinator import START_TIMEOUT_S
from twopc.errors import ConfigurationError
from twopc.options import Option, names
from twopc.spark.data_source.round import Rounds

BATCH_OWNER = "batch writes"
"""Whose the log of batch writes is. No query has this id."""

_LOG_FOLDER = "twopc-log"

OPTIONS = (
    Option("sink", "text", "needed: the backend's entry-point name, such as `kafka` or `files`"),
    Option(
        "checkpointLocation",
        "path or URL",
        "Spark's own, needed for queries: the query's id is read there. Spark's setting for all queries does not count",
    ),
    Option(
        "log",
        "path or URL",
        "the folder of the commit log. Needed for batch writes",
        f"for queries `{_LOG_FOLDER}` in the checkpoint folder",
    ),
    Option("replay_copies", "URL", "a folder for copies of what is written, as for `Coordinator`"),
    Option(
        "first_batch_id",
        "whole number",
        "the first batch that an empty log accepts; other than 0 only for a query that ran without twopc before",
        "0",
    ),
    Option(
        "start_timeout_s",
        "whole number",
        "how many seconds to wait for a target system before the log's first decision",
        f"{START_TIMEOUT_S:.0f}",
    ),
    Option("batch_id", "whole number", "for batch writes: the number of this one, by which it can be repeated"),
)
"""All others are the sink's own."""

_OWN = {name.lower() for name in names(OPTIONS)}


def stream_target(options: Mapping[str, str]) -> Rounds:
    """The target of a streaming query. ``options``: Spark gives their names in lower case.

    Raises:
        ConfigurationError: an option is missing, wrong, or for batch writes; or the query's id can't be read.
    """
    if "batch_id" in options:
        raise ConfigurationError("the option 'batch_id' is for batch writes: a streaming query numbers its batches")
    checkpoint = options.get("checkpointlocation")
    if not checkpoint:
        raise ConfigurationError(
            "format('twopc') needs the option 'checkpointLocation', as it finds the query's id there. A folder from"
            " spark.sql.streaming.checkpointLocation can't be seen from here: name it with .option(...)."
        )
    folder = CheckpointFolder(checkpoint)
    log = options.get("log") or f"{folder.url}/{_LOG_FOLDER}"
    return replace(_target(options, log, folder.query_id()), checkpoint=folder.url)


def batch_target(options: Mapping[str, str]) -> tuple[Rounds, int | None]:
    """The target of one batch write, and the number that it has been given. Raises like ``stream_target``."""
    if not options.get("log"):
        raise ConfigurationError(
            "a batch write needs the option 'log': the folder of a commit log of its own, such as"
            " file:///data/orders-log"
        )
    batch_id = _number(options, "batch_id") if "batch_id" in options else None
    return _target(options, options["log"], BATCH_OWNER), batch_id


def _target(options: Mapping[str, str], log: str, owner: str) -> Rounds:
    backend = options.get("sink")
    if not backend:
        raise ConfigurationError("format('twopc') needs the option 'sink': a backend's name, such as kafka or files")
    if log.startswith("memory:"):
        raise ConfigurationError(f"a commit log at {log!r} is in one process's memory, and several need it")
    return Rounds(
        backend=backend,
        options={name: value for name, value in options.items() if name not in _OWN},
        log=url(log),
        owner=owner,
        replay_copies=url(options["replay_copies"]) if "replay_copies" in options else None,
        first_batch_id=_number(options, "first_batch_id") if "first_batch_id" in options else 0,
        start_timeout_s=_number(options, "start_timeout_s") if "start_timeout_s" in options else START_TIMEOUT_S,
    )


def _number(options: Mapping[str, str], name: str) -> int:
    text = options[name].strip()
    if not text.isdecimal():
        raise ConfigurationError(f"the option {name!r} is a number from 0 on, not {text!r}")
    return int(text)
