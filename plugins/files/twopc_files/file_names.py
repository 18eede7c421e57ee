"""The names of staged and committed files: built, parsed and checked here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.errors import CorruptLog

if TYPE_CHECKING:
    from twopc.transaction import Committable, JsonValue
    from twopc.transactional_ids import TransactionId

STAGING = "_twopc"
"""The folder of staged files, below the sink's own so that a rename between them is atomic. Spark, Hive and
pyarrow skip a folder whose name starts with an underscore."""

# A dot in front hides a staged file from those who name the staging folder after all, as the pattern
# <path>/* does; the ending hides it from whoever looks for **/*.parquet.
_HIDDEN = "."
_STAGED = ".staged"

_TARGET = re.compile(r"[A-Za-z0-9-][A-Za-z0-9._-]*")
"""All that ``target_name`` makes: no separator, nothing hidden, never ``..``."""

_TRANSACTION_ID = re.compile(r"[A-Za-z0-9._-]+")
"""What the pool of transactional ids allows."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """Where one transaction's file is before and after its commit: names relative to the sink's folder.

    Attributes:
        staged: below the staging folder.
        target: in the sink's folder itself.
        size_bytes: how long the file is.
    """

    staged: str
    target: str
    size_bytes: int

    @classmethod
    def of(cls, committable: Committable) -> FileNames:
        """The names in a committable, which came from a log and is input like any other.

        Raises:
            CorruptLog: they are not such as this sink writes. Nothing was touched.
        """
        target, size_bytes = committable.handle.get("target"), committable.handle.get("bytes")
        if not isinstance(target, str) or not _TARGET.fullmatch(target):
            raise _corrupt(committable, "target", target)
        if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
            raise _corrupt(committable, "bytes", size_bytes)
        return cls(staged_of(committable), target, size_bytes)


def staged_of(committable: Committable) -> str:
    """The staged file's name in a committable, which may be one of ``recover``. Raises CorruptLog as above.

    It must be the transaction's own: a wrong name would commit, or remove, the file of another one.
    """
    staged, transaction_id = committable.handle.get("staged"), committable.transaction_id
    if staged != staged_name(transaction_id) or not _TRANSACTION_ID.fullmatch(transaction_id):
        raise _corrupt(committable, "staged", staged)
    return staged_name(transaction_id)


def staged_name(transaction_id: str) -> str:
    """Named by the exact id, never a pooled one: a file system keeps nothing of a name that is gone."""
    return f"{_HIDDEN}{transaction_id}{_STAGED}"


def transaction_of(staged: str) -> str | None:
    """The transaction id in the name of a staged file, or None where it is no such name."""
    if not (staged.startswith(_HIDDEN) and staged.endswith(_STAGED)):
        return None
    return staged.removeprefix(_HIDDEN).removesuffix(_STAGED)


def target_name(transaction_id: TransactionId, extension: str) -> str:
    """``part-<batch>-<partition>-<exact id>.parquet``: sorts by batch, and is unique because the exact id is.

    A line of a log that names the transaction finds the file, and the other way round.
    """
    order = f"{transaction_id.round.batch_id:020d}-{transaction_id.partition:05d}"
    return f"part-{order}-{transaction_id.exact}{extension}"


def _corrupt(committable: Committable, key: str, value: JsonValue) -> CorruptLog:
    return CorruptLog(
        f"the commit log names {value!r} as {key!r} of transaction {committable.transaction_id!r}, which no"
        " file sink writes. No file was touched. Was the log edited, or is this entry another backend's?"
        " Restore the log, or give the sink the name back that it had."
    )
