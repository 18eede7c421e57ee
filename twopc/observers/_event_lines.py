"""Events as lines of JSON, and back. No I/O.

A line has the time of its event in a key that is named for the event, such as ``finished_at``. Events of a kind that
may come for many transactions of a batch share lines. Handles of transactions are left out: no observer needs them,
they may be long, and with some a transaction can be ended. What a file holds may have been written by anybody: a line
is read only if every value is of its type.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc import errors
from twopc.datasets import Dataset
from twopc.events import (
    BatchCommitted,
    BatchFailed,
    BatchFinished,
    BatchPart,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.phases import Phase
from twopc.transaction import Committable

if TYPE_CHECKING:
    import pyarrow as pa

EVENTS_PER_LINE = 500
"""How many events share a line at most: their committables take about 100 kB."""

_MOST = 2**63
"""No count is as large, and what is larger may be too large to calculate with."""

_A_CENTURY_S = 3.2e9
"""Nothing takes as long."""

_LONGEST_NAME = 100

Values: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event that was read from a file. ``at`` is when it happened, in UTC."""

    at: datetime
    event: Event


def group_of(event: Event) -> tuple[object, ...] | None:
    """Return a key that is equal for events that may share a line; None for an event that has a line of its own."""
    match event:
        case TransactionAborted(sink, _, recovered, owner):
            return TransactionAborted, sink, recovered, owner
        case TransactionCommitted(sink, batch_id, _, recovered, owner):
            return TransactionCommitted, sink, batch_id, recovered, owner
        case CallRetried(owner=owner, decided_batch_id=batch_id):
            return CallRetried, owner, batch_id
    return None


def encoded(events: Sequence[Event], at: datetime) -> bytes:
    """Return the line of events of one group, or of one event of no group. ``at`` is when the last one happened."""
    key, values = _values(events)
    return json.dumps({key: at.isoformat(timespec="milliseconds"), **values}).encode() + b"\n"


def _values(events: Sequence[Event]) -> tuple[str, Values]:
    match events[-1]:
        case PhaseEntered(phase, batch_id, owner):
            return "entered_at", {"phase": phase.value, "batch_id": batch_id, "owner": owner}
        case CallRetried() as retried:
            return "retried_at", {**asdict(retried), "times": len(events)}
        case BatchFinished() as batch:
            return "finished_at", asdict(batch)
        case BatchFailed(batch_id, error, phases_ms, owner):
            failed = {"batch_id": batch_id, "error": type(error).__name__, "message": str(error)}
            return "failed_at", {**failed, "phases_ms": phases_ms, "owner": owner}
        case BatchCommitted(batch_id, parts, reads, recovered, log_id, owner):
            batch_values = {"batch_id": batch_id, "parts": [*map(_part_values, parts)], "reads": reads}
            return "committed_at", {**batch_values, "recovered": recovered, "log_id": log_id, "owner": owner}
    return _values_of_transactions(events)


def _values_of_transactions(events: Sequence[Event]) -> tuple[str, Values]:
    transactions = [*map(_transaction, events)]
    match events[-1]:
        case TransactionAborted(sink, _, recovered, owner):
            aborted = {"sink": sink, "recovered": recovered, "owner": owner}
            return "aborted_at", {**aborted, "transactions": transactions}
        case TransactionCommitted(sink, batch_id, _, recovered, owner):
            committed = {"sink": sink, "batch_id": batch_id, "recovered": recovered, "owner": owner}
            return "transactions_committed_at", {**committed, "transactions": transactions}
        case TransactionReplayed(sink, batch_id, _, _, owner):
            replayed = {"sink": sink, "batch_id": batch_id, "owner": owner}
            return "replayed_at", {**replayed, "transactions": transactions}
    raise AssertionError("unreachable")


def _transaction(event: Event) -> Any:
    if isinstance(event, TransactionReplayed):
        return [_without_handle(event.lost), _without_handle(event.replacement)]
    assert isinstance(event, TransactionAborted | TransactionCommitted)
    return _without_handle(event.committable)


def _without_handle(committable: Committable) -> Any:
    return replace(committable, handle={}).to_json()


def _part_values(part: BatchPart) -> Values:
    schema = None if part.schema is None else base64.b64encode(part.schema.serialize()).decode()
    datasets = None if part.datasets is None else [[each.namespace, each.name] for each in part.datasets]
    return {"sink": part.sink, "records": part.records, "datasets": datasets, "schema": schema}


# Reading. -------------------------------------------------------------------------------------------------------


def decoded(line: bytes) -> list[Recorded] | None:
    """Return the events of a line, none if they are of another kind; None if it can't be read, as if truncated."""
    try:
        values = json.loads(line)
        known = [*(values.keys() & _READERS.keys())]
        if not known:
            return []
        [key] = known
        at = datetime.fromisoformat(values.pop(key)).astimezone(timezone.utc)
        return [Recorded(at, event) for event in _READERS[key](values)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _phase_entered(values: Values) -> Iterator[Event]:
    batch_id = None if values["batch_id"] is None else _count(values["batch_id"])
    yield PhaseEntered(Phase(values["phase"]), batch_id, _text(values["owner"]))


def _call_retried(values: Values) -> Iterator[Event]:
    owner, batch_id = values["owner"], values.get("decided_batch_id")  # other versions may not have it
    event = CallRetried(
        what=_text(values["what"]),
        attempt=_count(values["attempt"]),
        wait_s=_seconds(values["wait_s"]),
        reason=_text(values["reason"]),
        waited_s=_seconds(values["waited_s"]),
        owner=None if owner is None else _text(owner),
        decided_batch_id=None if batch_id is None else _count(batch_id),
    )
    yield from [event] * min(_count(values["times"]), EVENTS_PER_LINE)


_OF_A_FINISHED_BATCH = {field.name for field in fields(BatchFinished)}
"""Other versions may write more."""


def _batch_finished(values: Values) -> Iterator[Event]:
    batch = BatchFinished(**{key: values[key] for key in values.keys() & _OF_A_FINISHED_BATCH})
    by_sink = (batch.records, batch.bytes, batch.transactions)
    if not batch.records.keys() == batch.bytes.keys() == batch.transactions.keys():
        raise ValueError
    for count in (batch.batch_id, batch.retries, batch.recovered, batch.unrouted, batch.bad_records):
        _count(count)
    for count in (count for of_sinks in by_sink for count in of_sinks.values()):
        _count(count)
    _phases_ms(batch.phases_ms)
    _flag(batch.already_decided)
    _text(batch.owner)
    yield batch


def _batch_failed(values: Values) -> Iterator[Event]:
    error = _error(_text(values["error"]), _text(values["message"]))
    yield BatchFailed(_count(values["batch_id"]), error, _phases_ms(values["phases_ms"]), _text(values["owner"]))


def _batch_committed(values: Values) -> Iterator[Event]:
    yield BatchCommitted(
        batch_id=_count(values["batch_id"]),
        parts=tuple(map(_part, values["parts"])),
        reads=values["reads"],
        recovered=_flag(values["recovered"]),
        log_id=_text(values["log_id"]),
        owner=_text(values["owner"]),
    )


def _part(values: Values) -> BatchPart:
    datasets, schema = values["datasets"], values["schema"]
    return BatchPart(
        sink=_text(values["sink"]),
        records=_count(values["records"]),
        datasets=None if datasets is None else tuple(Dataset(_text(space), _text(name)) for space, name in datasets),
        schema=None if schema is None else _schema(_text(schema)),
    )


def _schema(text: str) -> pa.Schema | None:
    """Return the schema, or None where it can't be read: what else the line has does not depend on it."""
    try:
        import pyarrow as pa  # the core does not install it

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (ImportError, ValueError, OSError, NotImplementedError):  # those of Arrow are among them
        return None


def _aborted(values: Values) -> Iterator[Event]:
    sink, recovered, owner = _text(values["sink"]), _flag(values["recovered"]), _text(values["owner"])
    for each in _shared_line(values):
        yield TransactionAborted(sink, Committable.from_json(each), recovered, owner)


def _committed(values: Values) -> Iterator[Event]:
    sink, recovered, owner = _text(values["sink"]), _flag(values["recovered"]), _text(values["owner"])
    for each in _shared_line(values):
        committable = Committable.from_json(each)
        yield TransactionCommitted(sink, _count(values["batch_id"]), committable, recovered, owner)


def _replayed(values: Values) -> Iterator[Event]:
    sink, batch_id, owner = _text(values["sink"]), _count(values["batch_id"]), _text(values["owner"])
    for lost, replacement in _shared_line(values):
        yield TransactionReplayed(
            sink, batch_id, Committable.from_json(lost), Committable.from_json(replacement), owner
        )


def _shared_line(values: Values) -> list[Any]:
    transactions = values["transactions"]
    return transactions if isinstance(transactions, list) else _refuse()


_READERS: dict[str, Callable[[Values], Iterator[Event]]] = {
    "entered_at": _phase_entered,
    "retried_at": _call_retried,
    "finished_at": _batch_finished,
    "failed_at": _batch_failed,
    "committed_at": _batch_committed,
    "aborted_at": _aborted,
    "transactions_committed_at": _committed,
    "replayed_at": _replayed,
}


def _error(name: str, message: str) -> BaseException:
    """Return an exception whose class has this name, and is that of ``twopc.errors`` if there is one."""
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, errors.TwoPhaseCommitError):
        return known(message)
    return _class_named(name)(message)


@functools.lru_cache(maxsize=100)
def _class_named(name: str) -> type[Exception]:
    return type(name, (Exception,), {}) if name.isidentifier() and len(name) <= _LONGEST_NAME else _refuse()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _refuse()


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else _refuse()


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MOST else _refuse()


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < _A_CENTURY_S else _refuse()


def _phases_ms(value: Any) -> dict[str, float]:
    if not value.keys() <= {phase.value for phase in Phase}:
        raise ValueError
    return {phase: _seconds(ms / 1000) * 1000 for phase, ms in value.items()}


def _refuse() -> Any:
    raise ValueError
