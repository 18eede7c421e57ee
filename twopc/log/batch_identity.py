"""A batch's identity: its number and what it read. The decision records both, and each offered batch is compared.

A number alone does not identify a batch. A query whose checkpoint lost its newest files plans the same number again,
from other offsets. If that batch passed for the decided one, the records in between would be lost. The core compares
the reads as opaque JSON: Spark's complete offset log entry, or whatever a plain loop passes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twopc.errors import LogMismatch
from twopc.log.entries import Entry
from twopc.transaction import JsonValue

logger = logging.getLogger(__name__)

ABSENT = "nothing"
"""Stands for a missing value in messages."""

_SHOWN = 10  # the most differences in one message


def recognize(
    batch_id: int,
    reads: JsonValue,
    tail: Entry,
    first_batch_id: int,
    log: str,
    follows: JsonValue = None,
    earlier: Entry | None = None,
) -> bool:
    """Return whether the log at the URL ``log``, with the newest entry ``tail``, has decided the batch that the query
    has reached. Refuse a batch that is neither decided nor next.

    A batch before the newest decided one is recognized by its reads, as long as its entry, ``earlier``, is kept. So a
    query whose checkpoint is several batches behind repeats them one by one, and its state catches up. Raises
    LogMismatch: the batch is out of order, was decided with other ``reads``, or ``follows`` a batch other than the
    decided one.
    """
    if earlier is not None and earlier.reads is not None:
        _require_same_reads(batch_id, earlier.reads, reads, log)
        return True
    _require_in_order(batch_id, tail.decided, first_batch_id, log)
    if batch_id != tail.decided:
        _require_same_end(batch_id, tail.reads, follows, log)
        return False
    _require_same_reads(batch_id, tail.reads, reads, log)
    return True


def as_logged(reads: JsonValue) -> JsonValue:
    """Return a batch's reads as the log returns them: as JSON, whose keys are text even if a loop passes numbers."""
    logged: JsonValue = json.loads(json.dumps(reads))
    return logged


def _require_in_order(batch_id: int, newest: int | None, first_batch_id: int, log: str) -> None:
    """Check that a batch may come after ``newest``, the newest batch that ``log`` has decided. Upholds: each batch is
    decided at most once, and in order. Raises LogMismatch: the batch is neither the newest decided one nor the next."""
    expected = first_batch_id if newest is None else newest + 1
    if batch_id in (newest, expected):
        return
    if newest is None:
        raise LogMismatch(
            f"the query is at batch {batch_id}, and its commit log at {log} is empty. Nothing was written. Either the"
            " log was deleted: restore it, or what it had decided is written twice. Or the query had another sink"
            f" before: then start this log with first_batch_id={batch_id}."
        )
    way_out = (
        "'twopc checkpoint repair' writes what the checkpoint lacks back, as far as the log keeps it; else restore a"
        " newer checkpoint"
        if batch_id < newest
        else "restore the log that was replaced (or, if Spark has just repartitioned the query's state, which counts as"
        " a batch, begin a new log)"
    )
    raise LogMismatch(
        f"the query is at batch {batch_id}, and its commit log at {log} has decided batch {newest}, so only {newest} or"
        f" {newest + 1} can come now. Nothing was written. The checkpoint and the log are not of the same age:"
        f" {way_out}, or start both anew: what the query reads again is then written again. A loop without Spark begins"
        " at coordinator.next_batch_id."
    )


def _require_same_reads(batch_id: int, decided: JsonValue, now: JsonValue, log: str) -> None:
    """Check that a repeated batch is the batch that ``log`` has decided. Upholds: a batch is identified by what it
    reads, not by its number alone. Raises LogMismatch: the batch reads something else."""
    if decided is None or now is None:
        if decided is not now:
            missing = "its commit log" if decided is None else "the caller"
            logger.warning(
                "batch %d is taken for the one that %s has decided: %s does not say what it read, so its number alone"
                " was compared",
                batch_id,
                log,
                missing,
            )
        return
    if found := list(differences(decided, now)):
        raise LogMismatch(
            f"batch {batch_id} is decided in the commit log at {log}, and comes again with other input: {shown(found)}."
            " Nothing was written. The checkpoint is older than the log (restored from a backup, or it lost its newest"
            " files), and to go on would lose or double what lies between. Stop the query and run 'twopc checkpoint"
            " repair', which writes what the batch read back into the checkpoint."
        )


def _require_same_end(batch_id: int, decided: JsonValue, now: JsonValue, log: str) -> None:
    """Check that a new batch begins where the newest decided one ended. Upholds: no record is left out between the two
    batches, or is in both. Raises LogMismatch: the batch begins elsewhere."""
    if decided is None or now is None:
        return
    if isinstance(decided, dict) and isinstance(now, dict):
        decided = {key: value for key, value in decided.items() if key in now}
    if found := list(differences(decided, now)):
        raise LogMismatch(
            f"batch {batch_id} would follow a batch {batch_id - 1} with other input than the commit log at {log} has"
            f" decided: {shown(found)}. Nothing was written. The checkpoint had lost that batch, which was planned anew"
            " and taken for done. To go on would lose or double what lies between. Stop the query and run 'twopc"
            " checkpoint repair'."
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a batch's decided and current reads: JSON values, or the text ``ABSENT``."""

    path: str
    decided: JsonValue
    now: JsonValue

    def __str__(self) -> str:
        text = f"{self.path or 'it'}: decided {_text(self.decided)}, now {_text(self.now)}"
        if _is_number(self.decided) and _is_number(self.now):
            text += f" ({self.now - self.decided:+})"  # type: ignore[operator]  # both are numbers
        return text


def differences(decided: JsonValue, now: JsonValue, path: str = "") -> Iterator[Difference]:
    """Yield every leaf in which two JSON values differ, with its path, such as ``sources.0.orders.3``."""
    if decided == now:
        return
    if isinstance(decided, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*decided, *now]):
            yield from differences(decided.get(key, ABSENT), now.get(key, ABSENT), _below(path, key))
    elif isinstance(decided, list) and isinstance(now, list):
        for index in range(max(len(decided), len(now))):
            before, after = (side[index] if index < len(side) else ABSENT for side in (decided, now))
            yield from differences(before, after, _below(path, str(index)))
    else:
        yield Difference(path, decided, now)


def shown(found: Sequence[Difference]) -> str:
    """Return the first differences for a message, with sums over numbered values such as a topic's partitions."""
    rest = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    sums = (f"; {path}: {sum(apart):+} in all" for path, apart in _numbered(found).items() if len(apart) > 1)
    return "; ".join(map(str, found[:_SHOWN])) + rest + "".join(sums)


def _numbered(found: Sequence[Difference]) -> dict[str, list[float]]:
    """Return the numeric differences between values at numbered keys, such as partitions, by the path above the key."""
    apart: dict[str, list[float]] = {}
    for each in found:
        path, _, key = each.path.rpartition(".")
        if key.isdecimal() and _is_number(each.decided) and _is_number(each.now):
            apart.setdefault(path, []).append(each.now - each.decided)  # type: ignore[operator]  # both are numbers
    return apart


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: JsonValue) -> str:
    text = ABSENT if value == ABSENT else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
