"""Events as lines of JSON, and back. No I/O.

A line contains the event's fields and its time. The key of the time, such as ``finished_at``, identifies the kind of
event. Events that may occur for many transactions of a batch share lines. Transactions' handles are left out, since
some of them allow ending a transaction. Other programs may have written to the file, so a line is accepted only if
every value has the right type.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from twopc import errors
from twopc.events import (
    BatchCommitted,
    BatchFailed,
    BatchFinished,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.phases import Phase
from twopc.transaction import Committable

EVENTS_PER_LINE = 500
"""The most events per line. Their committables take about 100 kB."""

_KINDS: dict[str, type[Any]] = {
    "entered_at": PhaseEntered,
    "retried_at": CallRetried,
    "finished_at": BatchFinished,
    "failed_at": BatchFailed,
    "committed_at": BatchCommitted,
    "aborted_at": TransactionAborted,
    "transactions_committed_at": TransactionCommitted,
    "replayed_at": TransactionReplayed,
}
_KEYS = {kind: key for key, kind in _KINDS.items()}

Values: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event that was read from a file. ``at`` is its time in UTC."""

    at: datetime
    event: Event


def group_of(event: Event) -> tuple[object, ...] | None:
    """Return a key that is equal for events that may share a line; None for an event that needs its own line."""
    match event:
        case TransactionAborted(sink, _, recovered, owner):
            return TransactionAborted, sink, recovered, owner
        case TransactionCommitted(sink, batch_id, _, recovered, owner):
            return TransactionCommitted, sink, batch_id, recovered, owner
        case CallRetried(owner=owner, decided_batch_id=batch_id):
            return CallRetried, owner, batch_id
    return None


def encode(events: Sequence[Event], at: datetime) -> bytes:
    """Return the line for the events of a group, or for a single event. ``at`` is the time of the last one."""
    values: Values = _to_json(events[-1])
    if isinstance(events[-1], CallRetried):
        values["times"] = len(events)
    elif "committable" in values:
        del values["committable"]
        values["transactions"] = [_to_json(getattr(event, "committable")) for event in events]  # noqa: B009  # of two kinds
    time = {_KEYS[type(events[-1])]: at.isoformat(timespec="milliseconds")}
    return json.dumps(time | values).encode() + b"\n"


def _to_json(value: Any) -> Any:
    match value:
        case Committable():
            value = replace(value, handle={}).to_json()
        case BaseException():
            value = {"kind": type(value).__name__, "message": str(value)}
        case Phase():
            value = value.value
        case tuple():
            value = [*map(_to_json, value)]
        case _ if is_dataclass(value):
            value = {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
        case _ if hasattr(value, "serialize"):  # an Arrow schema
            value = base64.b64encode(value.serialize()).decode()
    return value


# Reading. -------------------------------------------------------------------------------------------------------


def decode(line: bytes) -> list[Recorded]:
    """Return the events in a line; none if their kind is unknown, or the line can't be read, for example if it is
    truncated."""
    try:
        values = json.loads(line)
        [key] = values.keys() & _KINDS.keys()
        at = datetime.fromisoformat(values.pop(key)).astimezone(timezone.utc)
        return [Recorded(at, event) for event in _events(_KINDS[key], values)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return []


def _events(kind: type[Any], values: Values) -> list[Event]:
    if kind is CallRetried:
        return [_from_json(kind, values)] * min(_from_json(int, values["times"]), EVENTS_PER_LINE)
    if kind in (TransactionAborted, TransactionCommitted):
        return [_from_json(kind, values | {"committable": each}) for each in _list(values["transactions"])]
    return [_from_json(kind, values)]


def _from_json(kind: Any, value: Any) -> Any:
    """Convert a value from JSON to the type of its field. Raises ValueError, TypeError or KeyError: the value does not
    fit the type."""
    if kind in _READERS:
        return _READERS[kind](value)
    if kind in _PLAIN:
        return value if type(value) in _PLAIN[kind] else _refuse()
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(_from_json(arguments[0], each) for each in _list(value))
    if get_origin(kind) is dict:
        return {key: _from_json(arguments[1], each) for key, each in value.items()}
    if arguments:  # a type, or None
        return None if value is None else _from_json(arguments[0], value)
    # Other versions may write additional fields, or leave out fields that have a default.
    return kind(**{name: _from_json(of_field, value[name]) for name, of_field in _hints(kind).items() if name in value})


class _Schema:
    """A placeholder for the class of Arrow schemas: the core does not install Arrow."""


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, localns={"JsonValue": Any, "pa": SimpleNamespace(Schema=_Schema)})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _refuse()


def _error(value: Any) -> BaseException:
    """Return an exception with the class of this name in ``twopc.errors``, or else with a new class of this name."""
    known = getattr(errors, _from_json(str, value["kind"]), None)
    is_ours = isinstance(known, type) and issubclass(known, errors.TwoPhaseCommitError)
    kind: Any = known if is_ours else _class_named(value["kind"])
    error: BaseException = kind(_from_json(str, value["message"]))
    return error


@functools.lru_cache(maxsize=100)
def _class_named(name: str) -> type[Exception]:
    return type(name, (Exception,), {}) if name.isidentifier() else _refuse()


def _schema(value: Any) -> Any:
    """Return the schema, or None if the schema can't be read. The rest of the line is then still accepted."""
    try:
        import pyarrow as pa  # the core does not install it

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(_from_json(str, value))))
    except (ImportError, ValueError, OSError, NotImplementedError):  # Arrow's errors inherit from these
        return None


def _refuse() -> Any:
    raise ValueError


_READERS: dict[Any, Callable[[Any], Any]] = {
    Any: lambda value: value,
    Phase: Phase,
    Committable: Committable.from_json,
    BaseException: _error,
    _Schema: _schema,
}

_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (float, int)}
