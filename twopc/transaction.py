"""The live transaction on its participant, and the small value that outlives it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_HASH = re.compile(r"[0-9a-f]{16}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")  # as made from a transactional id

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Transaction:
    """A live transaction on the participant that began it. Sinks subclass it to hold their handles."""

    may_time_out = True
    """Whether the target system may roll back this transaction after its decision. If not, it needs no replay copy,
    even if the sink ``may_time_out``."""

    def __init__(self, transaction_id: TransactionId) -> None:
        self.id = transaction_id
        self.records = 0
        self.bytes = 0
        self.hash: int | None = None
        """The sum of the hashes of the records; None if they were written without hashes."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a transaction's records, together with their number, when their batch is computed again."""

    partition: int  # the batch's partition with these records
    # The sum of the hashes of the records, modulo 2**64. Independent of their order, because Spark may change it.
    hash: int

    def to_json(self) -> JsonValue:
        return [self.partition, f"{self.hash:016x}"]

    @classmethod
    def from_json(cls, value: JsonValue) -> Fingerprint:
        """Parse a value of ``to_json``. Raises TypeError for any other value."""
        match value:
            case [int(partition), str(text)] if partition >= 0 and _HASH.fullmatch(text):
                return cls(partition, int(text, 16))
        raise TypeError(f"a committable's fingerprint must be a partition and a hash, not {value!r}")


_HASHES = 2**64


def hashes_of(batch: pa.RecordBatch) -> pa.Int64Array:
    """Return a hash of each record. Slow; for the few records that a driver writes."""
    import pyarrow as pa

    digests = [hashlib.blake2b(repr(each).encode(), digest_size=8).digest() for each in batch.to_pylist()]
    return pa.array([int.from_bytes(digest, "big", signed=True) for digest in digests], pa.int64())


def sum_of_hashes(hashes: pa.Int64Array, before: int) -> int:
    """Return ``before`` plus all ``hashes``, modulo 2**64, which does not depend on the order of the records."""
    import pyarrow.compute as pc

    return int((before + pc.sum(hashes).as_py()) % _HASHES)  # Arrow's sum wraps around, too


@dataclass(frozen=True, slots=True)
class Committable:
    """All that any process needs to commit or abort one transaction, even after the process that wrote it is gone.

    Attributes:
        transaction_id: the transaction's name in the target system.
        handle: what else the target system needs, as JSON. Together with the name it identifies exactly one
            transaction, even after the name was used again. The commit log keeps the handle, so the handle must not
            contain credentials.
        records: the number of records, or None if the transaction comes from ``recover``.
        replay_copy: the name of the copy from which the records can be written again, or None.
        bytes: the size of the records in Arrow, in memory, or None if unknown.
        fingerprint: identifies the records if they are computed again; None if they can't be.
    """

    transaction_id: str
    handle: Mapping[str, JsonValue]
    records: int | None = None
    replay_copy: str | None = None
    bytes: int | None = None
    fingerprint: Fingerprint | None = None

    def is_same_transaction(self, other: Committable) -> bool:
        """Return whether both identify one transaction: by an equal name, and equal values under all shared handle
        keys."""
        shared = self.handle.keys() & other.handle.keys()
        return self.transaction_id == other.transaction_id and all(
            self.handle[key] == other.handle[key] for key in shared
        )

    def to_json(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {
            "transaction_id": self.transaction_id,
            "handle": dict(self.handle),
            "records": self.records,
            "replay_copy": self.replay_copy,
            "bytes": self.bytes,
        }
        return value if self.fingerprint is None else {**value, "fingerprint": self.fingerprint.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> Committable:
        """Parse a value of ``to_json``. Raises KeyError or TypeError for any other value."""
        transaction_id, handle, records = value["transaction_id"], value["handle"], value["records"]
        if not isinstance(transaction_id, str) or not isinstance(handle, dict):
            raise TypeError("a committable needs a transaction_id (text) and a handle (object)")
        replay_copy = value.get("replay_copy")
        if replay_copy is not None and (not isinstance(replay_copy, str) or not _FILE_NAME.fullmatch(replay_copy)):
            raise TypeError(f"a committable's replay copy must be a file name or null, not {replay_copy!r}")
        given = value.get("fingerprint")
        fingerprint = None if given is None else Fingerprint.from_json(given)
        return cls(transaction_id, handle, _count(records), replay_copy, _count(value.get("bytes")), fingerprint)


def by_name(committables: Iterable[Committable]) -> Mapping[str, Sequence[Committable]]:
    """Return committables by transactional id. Several committables may share an id, which is unique only together with
    the handle."""
    found: dict[str, list[Committable]] = {}
    for each in committables:
        found.setdefault(each.transaction_id, []).append(each)
    return found


def among(committables: Iterable[Committable]) -> Callable[[Committable], bool]:
    """Return a function that tests whether a transaction is among ``committables``. The function looks up the name, so
    its cost does not grow with their number."""
    known = by_name(committables)
    return lambda given: any(map(given.is_same_transaction, known.get(given.transaction_id, ())))


Vote: TypeAlias = dict[str, Committable]
"""The yes votes of one participant: sink name → its pre-committed transaction. Sinks to which the participant wrote
nothing are absent."""


def _count(value: JsonValue) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise TypeError(f"a committable's records and bytes must be counts or null, not {value!r}")
    return value
