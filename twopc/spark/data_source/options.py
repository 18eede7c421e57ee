"""The options of ``format("twopc")``: their names, checks and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twopc.checkpoint.folder import CheckpointFolder, url
from twopc.coordinator import START_TIMEOUT_S
from twopc.errors import ConfigurationError
from twopc.options import Option, local_file, parse, place, text, whole_number
from twopc.spark.data_source.flow import Flow
from twopc.spark.data_source.round import Rounds

BATCH_OWNER = "batch writes"
"""The owner of the log of batch writes. No query has this id."""

_LOG_FOLDER = "twopc-log"

_QUERY_NAME = "queryname"  # Spark passes the query's name as an option; in a pipeline, the name of the flow

_OWNER = "format('twopc')"

_PASSED_ON = "and the sink's own"

EVENTS = Option(
    "events",
    local_file("/var/log/twopc/orders.events.jsonl"),
    "a file on the driver's machine, to which its processes append their events for `twopc.spark.forward_events`",
)

OPTIONS = (
    Option(
        "sink",
        text("a backend's name, such as kafka or files"),
        "the backend's entry-point name, such as `kafka` or `files`",
        needed=True,
    ),
    Option(
        "checkpointLocation",
        replace(
            place(),
            must_be="the query's checkpoint folder, given with .option(...), as the query's id is there. A folder from"
            " spark.sql.streaming.checkpointLocation can't be seen from here",
        ),
        "Spark's own, needed for queries: the query's id is read there. Spark's setting for all queries does not count",
    ),
    Option(
        "log",
        replace(
            place(),
            must_be="the folder of the commit log, as a path or URL that all processes reach, such as"
            " file:///data/orders-log",
        ),
        "the folder of the commit log. Needed for batch writes",
        default_text=f"for queries `{_LOG_FOLDER}` in the checkpoint folder; for a flow beside its checkpoints",
    ),
    Option("replay_copies", place("URL", "s3://bucket/copies"), "a folder for replay copies, as for `Coordinator`"),
    Option(
        "first_batch_id",
        whole_number(least=0),
        "the first batch that an empty log accepts; other than 0 only for a query that ran without twopc before, or"
        " lost its log",
        default=0,
    ),
    Option(
        "start_timeout_s",
        whole_number(least=0),
        "how many seconds to wait for a target system before the log's first decision",
        default=START_TIMEOUT_S,
    ),
    EVENTS,
    Option("batch_id", whole_number(least=0), "for batch writes: the number of this one, by which it can be repeated"),
)
"""The options of twopc. All others belong to the sink."""


def stream_target(options: Mapping[str, str]) -> Rounds:
    """Return the rounds of a streaming query. Spark passes option names in lower case. Raises ConfigurationError: an
    option is missing, wrong, or for batch writes; or the query's id can't be read."""
    if "batch_id" in options:
        raise ConfigurationError(
            "the option 'batch_id' is for batch writes: a streaming query numbers its batches", option="batch_id"
        )
    own = {name: value for name, value in options.items() if name != _QUERY_NAME}
    values, sinks_own = _parsed(_OWNER, own, "checkpointLocation")
    folder = CheckpointFolder(values["checkpointLocation"])
    flow = Flow.of(folder.url, options.get(_QUERY_NAME, ""))
    log = values.get("log", f"{flow.folder if flow else folder.url}/{_LOG_FOLDER}")
    return replace(_target(values, sinks_own, log, folder.query_id()), checkpoint=folder.url, flow=flow)


def batch_target(options: Mapping[str, str]) -> tuple[Rounds, int | None]:
    """Return the rounds of a batch write, and its ``batch_id`` if given. Raises ConfigurationError in the same cases as
    ``stream_target``."""
    values, sinks_own = _parsed("a batch write", options, "log")
    return _target(values, sinks_own, values["log"], BATCH_OWNER), values.get("batch_id")


def target_to_check(options: Mapping[str, Any]) -> tuple[str, dict[str, str], str | None]:
    """Return the backend, the sink's options and the log's place for a writer that may not have started yet.

    ``options`` are as the driver gives them to Spark. The place is None in a pipeline, where Spark chooses the
    checkpoint later. Raises ConfigurationError in the same cases as ``stream_target``.
    """
    given = {name.lower(): _as_spark_passes(value) for name, value in options.items() if value is not None}
    values, sinks_own = _parsed(_OWNER, given)
    checkpoint = values.get("checkpointLocation")
    log = values.get("log", checkpoint and f"{url(checkpoint)}/{_LOG_FOLDER}")
    return values["sink"], sinks_own, log


def _as_spark_passes(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(owner: str, options: Mapping[str, str], needed: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of twopc's options, and the sink's options. ``needed`` names an option that is required in
    addition to ``sink``."""
    for name in ("delete_where", "latest_by"):
        if name in options:
            raise ConfigurationError(
                f"{_OWNER} has no option {name!r}, since it can't bring the records of a key together: write with"
                f" foreach_batch and Output(sink, columns, {name}=...).",
                option=name,
            )
    spelled = {option.name.lower(): option.name for option in OPTIONS}
    given = {spelled.get(name, name): value for name, value in options.items()}
    declared = [replace(option, needed=option.needed or option.name == needed) for option in OPTIONS]
    own = {name: value for name, value in options.items() if name not in spelled}
    return parse(owner, declared, given, _PASSED_ON), own


def _target(values: Mapping[str, Any], sinks_own: Mapping[str, str], log: str, owner: str) -> Rounds:
    if log.startswith("memory:"):
        raise ConfigurationError(
            "the option 'log' must be elsewhere: memory:// is in one process's memory", option="log"
        )
    return Rounds(
        backend=values["sink"],
        options=sinks_own,
        log=url(log),
        owner=owner,
        replay_copies=url(values["replay_copies"]) if "replay_copies" in values else None,
        first_batch_id=values["first_batch_id"],
        start_timeout_s=values["start_timeout_s"],
        events=values.get("events"),
    )
