"""The entries of a commit log as JSON. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any, get_args

from twopc.errors import ConfigurationError, CorruptLog
from twopc.log import factored
from twopc.log.entries import Abandonment, Decision, Entry, Kind, Repetition
from twopc.transaction import JsonValue
from twopc.transactional_ids import Round

FORMAT = 2
"""The newest format that this release reads. An entry is written in the oldest format that can hold it: 2 if a sink's
transactions are factored (``factored``), else 1."""

ENTRY_SUFFIX = ".json"

LONGEST_DECISION = 32 * 1024 * 1024
"""The longest decision, in bytes, with its transactions unfactored: 70 000 files of as many tasks, or twice as many
files of a few tasks. A longer one is refused even if factoring shortens it, because its amendment may not be factored.
"""

MOST_TRANSACTIONS = 100_000
"""The most transactions in one decision, which then has about 300 bytes for each. A batch that is certain to exceed
this number is refused before its tasks begin, rather than every time its tasks have written it."""

LONGEST_ENTRY = 2 * LONGEST_DECISION
"""The longest entry, in bytes. No coordinator writes a longer one. A longer entry is not parsed, because parsing takes
many times its length in memory. Entries that carry a decision forward are little longer than the decision."""

_LEVELS_OF_LINES = 5  # entry, decisions, decision, sinks, committables
_SHORT = 120  # the most characters of a value on one line

_SHOWN = 500  # the most characters of an error, which may quote the entry

_LARGEST_COUNT = 2**63 - 1  # Spark's batch ids are 64-bit


def serialise(entry: Entry) -> bytes:
    """Write an entry as JSON, with one line per transaction, readable in any pager. Raises ConfigurationError: the
    entry decides a batch, and the decision is too long. Decisions that are carried forward are never refused."""
    unresolved: list[Any] = [_decision_to_json(decision) for decision in entry.unresolved]
    given_up: list[Any] = [{**_decision_to_json(a.given_up), "by": a.by, "at": a.at} for a in entry.abandoned]
    parts = chain.from_iterable(decision["sinks"].values() for decision in (*unresolved, *given_up))
    value: dict[str, JsonValue] = {
        "format": 2 if any(map(factored.is_factored, parts)) else 1,
        "kind": entry.kind,
        "entry_id": entry.entry_id,
        "log_id": entry.log_id,
        "owner": entry.owner,
        "incarnation": entry.incarnation,
        "decided": entry.decided,
        "committed_through": entry.committed_through,
        "unresolved": unresolved,
        "written_at": entry.written_at,
    }
    added: dict[str, JsonValue] = {  # fields that the first logs lack
        "abandoned": given_up or None,
        "prefixes": dict(entry.prefixes) or None,
        "reads": entry.reads,
        "newest": dict(entry.newest) or None,
        "repetition": None if entry.repetition is None else asdict(entry.repetition),
    }
    value |= {name: each for name, each in added.items() if each is not None}
    data = _laid_out(value).encode()
    length = len(data) + sum(map(_saved, entry.unresolved, unresolved)) if entry.kind == "decide" else 0
    if length > LONGEST_DECISION:
        raise ConfigurationError(
            f"the decision of batch {entry.decided} would have {length} bytes, and the commit log takes"
            f" {LONGEST_DECISION}: the batch has too many transactions or files. Nothing of it is visible. Have fewer"
            " tasks, fewer partition folders or smaller batches, and start again."
        )
    return data


def _saved(decision: Decision, as_json: Mapping[str, Any]) -> int:
    """Return an upper bound on the bytes that factoring saves in a decision."""
    parts = (part for sink, part in decision.committables.items() if factored.is_factored(as_json["sinks"][sink]))
    return sum(len(json.dumps(each.to_json())) for each in chain.from_iterable(parts))


def _laid_out(value: JsonValue, depth: int = 0) -> str:
    """Lay out JSON in lines. A short value takes one line. So does a transaction of any length, because otherwise each
    number in its list of partitions would take a line."""
    if depth == _LEVELS_OF_LINES or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, dict):
        members = [f"{json.dumps(key)}: {_laid_out(member, depth + 1)}" for key, member in value.items()]
    else:
        members = [_laid_out(member, depth + 1) for member in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    if depth and sum(map(len, members)) + 2 * len(members) <= _SHORT:
        return f"{first}{', '.join(members)}{last}"
    line = "\n" + " " * depth
    return f"{first}{line} " + f",{line} ".join(members) + f"{line}{last}"


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    return {
        "batch_id": decision.batch_id,
        "incarnation": decision.round.incarnation,
        "sinks": {sink: factored.to_json(committables) for sink, committables in decision.committables.items()},
    }


def entry_name(slot: int) -> str:
    """Return the file name of an entry, such as ``00000000000000000042.json``. Names with twenty digits sort like
    numbers."""
    return f"{slot:020d}{ENTRY_SUFFIX}"


def parse(data: bytes, where: str) -> Entry:
    """Return the entry in ``data``. ``where`` names it in errors.

    Raises:
        CorruptLog: ``data`` is not what ``serialise`` writes, or a later release wrote it.
    """
    with _entry_at(where):
        value = _value(data, where)
        entry = Entry(
            kind=_one_of(value["kind"]),
            entry_id=_text(value["entry_id"]),
            log_id=_text(value["log_id"]),
            owner=_text(value["owner"]),
            incarnation=_count(value["incarnation"]),
            decided=None if value["decided"] is None else _count(value["decided"]),
            unresolved=tuple(_decision(decision) for decision in _list(value["unresolved"])),
            written_at=_text(value["written_at"]),
            abandoned=tuple(
                Abandonment(_decision(lost), _text(lost["by"]), _text(lost["at"]))
                for lost in _list(value.get("abandoned", []))
            ),
            prefixes={name: _text(prefix) for name, prefix in value.get("prefixes", {}).items()},
            reads=value.get("reads"),
            newest={name: _count(batch_id) for name, batch_id in value.get("newest", {}).items()},
            repetition=repetition(value["repetition"]) if "repetition" in value else None,
        )
        batches = [decision.batch_id for decision in entry.unresolved]
        if batches and (batches != sorted(set(batches)) or batches[-1] != entry.decided):
            raise ValueError(f"unresolved batches {batches} do not lead up to the decided {entry.decided}")
        return entry


def parse_id(data: bytes, where: str) -> str:
    """Return the id of the entry in ``data``, without creating its transactions, which take many times their length in
    memory. Raises CorruptLog as ``parse`` does, but does not check the other fields of the entry."""
    with _entry_at(where):
        return _text(_value(data, where)["entry_id"])


def _value(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > LONGEST_ENTRY:
        raise ValueError(f"no entry has more than {LONGEST_ENTRY} bytes")
    value: dict[str, Any] = json.loads(data)
    if (found := _count(value["format"])) > FORMAT:
        raise CorruptLog(
            f"{where} has format {found}, and this release of twopc reads format {FORMAT}: a later release wrote it."
            " Nothing was changed. Start that release again."
        )
    if found == 0:
        raise ValueError("formats count from 1")
    return value


@contextmanager
def _entry_at(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(
            f"{where} is not an entry of a commit log: {type(error).__name__}: {str(error)[:_SHOWN]}. Nothing was"
            " changed. Restore the entry from a backup; don't delete it: it says which transactions are decided."
        ) from error


def repetition(value: Mapping[str, Any]) -> Repetition:
    """Return the repetition that ``asdict`` turned into ``value``. Raises KeyError, TypeError or AttributeError for any
    other value."""
    batch_id = value["batch_id"]
    return Repetition(
        _count(value["count"]),
        _text(value["since"]),
        None if batch_id is None else _count(batch_id),
        _text(value["failure"]),
        _text(value.get("start", "")),
        _count(value.get("at_s", 0)),
        _count(value.get("starts", value["count"])),
        tuple(map(repetition, _list(value.get("others", [])))),
    )


def _decision(value: Mapping[str, JsonValue]) -> Decision:
    sinks = value["sinks"]
    if not isinstance(sinks, dict):
        raise TypeError("'sinks' must be an object")
    return Decision(
        Round(_count(value["incarnation"]), _count(value["batch_id"])),
        {sink: tuple(factored.from_json(_list(committables))) for sink, committables in sinks.items()},
    )


def _one_of(value: object) -> Kind:
    for kind in get_args(Kind):
        if kind == value:
            return kind  # type: ignore[no-any-return]
    raise ValueError(f"unknown kind {value!r}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_COUNT:
        raise TypeError(f"{value!r} is not a count")
    return value
