"""Defects of the files and Kafka sinks, as replacements at seams. Each function here has one defect.

The first argument of each is the real function; the others are those of the call.
"""

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.campaigns.seams import Seam, returning
from twopc.errors import TransactionLost
from twopc.transaction import Committable

FILE_SINK = "twopc_files.sink:FileSink"
LOCAL = "twopc_files.stores.local:Local"
KAFKA_SINK = "twopc_kafka.sink:KafkaSink"
CONTROL = "twopc_kafka.client.control:Control"
POOL = "twopc.transactional_ids:TransactionalIdPool"

REFUSALS = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE")


# Files. ---------------------------------------------------------------------------------------------------------------


def _published(real: Any, self: Any, transaction: Any) -> Any:
    vote = real(self, transaction)
    for file in transaction.pending:
        self._store.publish(file.handle, self._store.look(file.handle))
    return vote


def _first(real: Any, *arguments: Any) -> list[Any]:
    return list(real(*arguments))[:1]


def _lost_is_there(real: Any, *arguments: Any) -> bool:
    try:
        is_to_be_published: bool = real(*arguments)
    except TransactionLost:
        return False
    return is_to_be_published


def _without_failure(real: Any, *arguments: Any) -> None:
    real(*arguments)


def _copied(_: Any, self: Any, file: Any, __: Any) -> None:
    target = self.folder / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(self._pending / file.pending, target)


def _live_files_left(_: Any, __: Any, transaction: Any) -> None:
    transaction.files.discard()


def _every_file_removed(_: Any, self: Any, __: Committable) -> None:
    for file in self._store.pending():
        self._store.discard(file)


def _target_removed(real: Any, self: Any, file: Any) -> None:
    real(self, file)
    if file.target:
        (self.folder / file.target).unlink(missing_ok=True)


def _discarded_if_there(_: Any, self: Any, file: Any) -> None:
    (self._pending / file.pending).unlink()


def _decidable_handles(real: Any, self: Any) -> Iterable[Committable]:
    return [replace(found, handle={"files": found.handle["open"]}) for found in real(self)]


def _one_file_each(real: Any, self: Any) -> Iterable[Committable]:
    return [replace(found, handle={"open": found.handle["open"][:1]}) for found in real(self)]


FILES = (
    ("a vote publishes", Seam(f"{FILE_SINK}.pre_commit", _published)),
    (
        "a vote says too few records",
        Seam(f"{FILE_SINK}.pre_commit", lambda real, *arguments: replace(real(*arguments), records=1)),
    ),
    ("the records of the first folder alone are written", Seam("twopc_files.layout:split", _first)),
    (
        "a commit publishes the first file of a transaction alone",
        Seam(f"{FILE_SINK}._decidable", _first, f"{FILE_SINK}.commit"),
    ),
    ("a commit of what was rolled back is a success", Seam("twopc_files.sink:is_to_be_published", _lost_is_there)),
    ("a commit that fails is a success", Seam(f"{FILE_SINK}._failure", _without_failure)),
    ("a commit copies, and leaves what is staged", Seam(f"{LOCAL}.publish", _copied)),
    ("seal leaves out a transaction", Seam(f"{FILE_SINK}.seal", _first)),
    ("an abort on a participant leaves the files", Seam(f"{FILE_SINK}.discard", _live_files_left)),
    ("an abort removes the staged files of every transaction", Seam(f"{FILE_SINK}.abort", _every_file_removed)),
    ("an abort removes what is committed", Seam(f"{LOCAL}.discard", _target_removed)),
    ("an abort of what does not exist fails", Seam(f"{LOCAL}.discard", _discarded_if_there)),
    (
        "recover lists the transactions of every query",
        Seam(f"{POOL}.owns_exact", returning(True), f"{FILE_SINK}.recover"),
    ),
    (
        "recover takes another handle for a transaction than its vote has",
        Seam(f"{FILE_SINK}.recover", _decidable_handles),
    ),
)
ONE_FILE_EACH = Seam(f"{FILE_SINK}.recover", _one_file_each)


# Kafka. ---------------------------------------------------------------------------------------------------------------


def _lost_is_committed(real: Any, *arguments: Any) -> None:
    with contextlib.suppress(TransactionLost):
        real(*arguments)


def _refusal_is_success(real: Any, *arguments: Any, **named: Any) -> str:
    error: str = real(*arguments, **named)
    return "NO_ERROR" if error in REFUSALS else error


def _whatever_has_the_name(real: Any, self: Any, name: str, *identity: int, **named: Any) -> str:
    if found := self.describe([name]).get(name):
        identity = (found.producer_id, found.producer_epoch)
    error: str = real(self, name, *identity, **named)
    return error


def _released_alone(_: Any, __: Any, transaction: Any) -> None:
    if not transaction.is_pre_committed:
        transaction.lease.release()


def _hanging_alone(real: Any, self: Any) -> Iterable[Committable]:
    return [found for found in real(self) if "hanging" in found.handle]


def _in_wider_scope(real: Any, self: Any, scope: str) -> Any:
    return real(self, scope[:-1])


def _without_epochs(real: Any, self: Any) -> Iterable[Committable]:
    return [replace(found, handle={"producer_id": found.handle["producer_id"]}) for found in real(self)]


def _nulls_filled(real: Any, self: Any, transaction: Any, batch: Any) -> None:
    import pyarrow.compute as pc

    where = batch.schema.get_field_index("value")
    real(self, transaction, batch.set_column(where, "value", pc.fill_null(batch.column(where), "")))


def _asked_is_committed(_: Any, __: Any, due: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    return dict.fromkeys(due, "NO_ERROR")


KAFKA: Sequence[tuple[str, tuple[Seam, ...]]] = (
    ("a commit of what was rolled back is a success", (Seam(f"{KAFKA_SINK}.commit", _lost_is_committed),)),
    ("a refused commit counts as committed", (Seam(f"{CONTROL}.end", _refusal_is_success),)),
    (
        "a commit ends whatever has the name now",
        (Seam(f"{CONTROL}.end", _whatever_has_the_name, f"{KAFKA_SINK}.commit"),),
    ),
    (
        "an abort ends whatever has the name now",
        (Seam(f"{CONTROL}.end", _whatever_has_the_name, "twopc_kafka.ending:abort"),),
    ),
    ("an abort on a participant does nothing", (Seam(f"{KAFKA_SINK}.discard", _released_alone),)),
    ("recover finds nothing", (Seam(f"{KAFKA_SINK}.recover", _hanging_alone),)),
    (
        "recover lists the transactions of a sink whose name begins with its own",
        (
            Seam(f"{CONTROL}.list_ongoing", _in_wider_scope, f"{KAFKA_SINK}.recover"),
            Seam(f"{POOL}.owns_leased", returning(True), f"{KAFKA_SINK}._owned"),
        ),
    ),
    (
        "recover does not tell a transaction from a later one of the same name",
        (Seam(f"{KAFKA_SINK}.recover", _without_epochs),),
    ),
    ("what was asked for at once counts as committed", (Seam(f"{CONTROL}.commit_many", _asked_is_committed),)),
    ("a null value becomes an empty one", (Seam(f"{KAFKA_SINK}.write", _nulls_filled),)),
)
