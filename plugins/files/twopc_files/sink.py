"""The file sink: a file is staged below the target folder, synced, and renamed into place on commit.

``<path>/_twopc/.<transaction id>.staged`` becomes ``<path>/part-<batch>-<partition>-....parquet``. A rename
within one file system is atomic, so a reader of the folder sees a transaction's file whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import IO, TYPE_CHECKING, Any

from twopc.errors import OperatorRequired, OutcomeUnknown, Refused, TransactionLost
from twopc.log_store import make_folder, sync_folder
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, JsonValue, Transaction
from twopc_files.file_names import STAGING, FileNames, staged_name, staged_of, target_name, transaction_of
from twopc_files.formats import RecordWriter, check_same_schema, check_schema
from twopc_files.options import FileOptions
from twopc_files.outcomes import commit_failed, write_failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from twopc.transactional_ids import TransactionId


EXACT_DOTS = 4
"""Between the five numbers that end an exact transactional id."""


class FileTransaction(Transaction):
    """A staged file that is being written.

    Attributes:
        path: the staged file.
        file: its only handle; closed by pre-commit or abort.
        schema: of all its record batches; None before the first.
        writer: encodes records into ``file``; None before the first.
    """

    def __init__(self, transaction_id: TransactionId, path: Path, file: IO[bytes]) -> None:
        super().__init__(transaction_id)
        self.path = path
        self.file = file
        self.schema: pa.Schema | None = None
        self.writer: RecordWriter | None = None


class FileSink(TwoPhaseCommitSink[FileTransaction]):
    """Writes files to a folder on a disk that every process of the query has at the same path.

    Args:
        options: ``path``: plain path or ``file://`` URL of the folder. ``format``: ``parquet`` (default) or
            ``json`` (JSON lines). ``compression``: of Parquet (default ``snappy``).

    Raises:
        ConfigurationError: an option is unknown, missing or can't be.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        parsed = FileOptions.parse(options)
        self._folder = parsed.folder
        self._format = parsed.format

    def __repr__(self) -> str:
        return f"FileSink({str(self._folder)!r}, {self._format})"

    def validate(self, schema: pa.Schema) -> None:
        """Raises SchemaMismatch that names a column of no use to the format."""
        check_schema(self._format, schema)

    # On a participant. --------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> FileTransaction:
        """Makes an empty staged file.

        Raises:
            ConfigurationError: this process may not make files there.
            OSError: any other reason why it can't.
        """
        path = self._staging / staged_name(transaction_id.exact)
        with self._staged(transaction_id):
            make_folder(self._staging)
            # x: an exact id is never used twice, so whoever wrote a file of this name still owns it.
            return FileTransaction(transaction_id, path, open(path, "xb"))  # noqa: PTH123

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """Raises SchemaMismatch for another schema than the first batch's, OSError where the disk is full."""
        with self._staged(transaction.id):
            if transaction.writer is None or transaction.schema is None:
                transaction.schema = batch.schema
                transaction.writer = self._format.open(transaction.file, batch.schema)
            check_same_schema(transaction.schema, batch)
            transaction.writer.write(batch)

    def pre_commit(self, transaction: FileTransaction) -> Committable:
        """Raises OSError where any byte could not be synced."""
        if transaction.writer is None:
            raise ValueError(f"transaction {transaction.id.exact} has no record, and would be a file without a schema")
        with self._staged(transaction.id), transaction.file as file:
            transaction.writer.finish()
            file.flush()
            os.fsync(file.fileno())
            size_bytes = os.fstat(file.fileno()).st_size
        with self._staged(transaction.id):
            sync_folder(self._staging)
            # The entry of the staging folder: whoever made it may have been killed before it could sync.
            sync_folder(self._folder)
        target = target_name(transaction.id, self._format.extension)
        handle: dict[str, JsonValue] = {
            "staged": transaction.path.name,
            "target": target,
            "bytes": size_bytes,
            "batch": transaction.id.round.batch_id,
        }
        return Committable(transaction.id.exact, handle, transaction.records)

    # On the coordinator. ------------------------------------------------------------------------------------

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002  # no file grows too old
        """Vetoes what this process could not commit later, while the round can still be rolled back.

        Raises:
            Refused: a staged file is not here (participants write to another disk), is not whole, or can't be
                renamed to its target; nothing is visible.
        """
        for committable in committables:
            obstacle = self._obstacle(FileNames.of(committable))
            if obstacle:
                what = self._what(committable, FileNames.of(committable))
                raise Refused(
                    f"{what} could not be committed, so it is rolled back, and nothing is visible: {obstacle}"
                )
        return committables

    def _obstacle(self, names: FileNames) -> str | None:
        """What would keep ``names`` from being committed by this process, and what to do about it."""
        staged, target = _status(self._staging / names.staged), _status(self._folder / names.target)
        if staged is None:
            return "the staged file is not here. Do all processes of the query have the same disk at this path?"
        if staged.st_size != names.size_bytes:
            return f"the staged file has {staged.st_size} bytes here, and was written with {names.size_bytes}."
        if target is not None:
            return "a file has the target's name already, and is never overwritten. Move it away."
        for folder in (self._folder, self._staging):
            # Effective ids are the ones that count in a rename; macOS can only be asked for the real ones.
            effective = os.access in os.supports_effective_ids
            if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
                return f"this process has no right to change {folder}. Grant it."
        if staged.st_dev != self._folder.stat().st_dev:
            return f"{self._staging} is on another file system than {self._folder}. Make it a plain folder."
        return None

    def commit(self, committable: Committable) -> None:
        """Rename the staged file into place, durably.

        Raises:
            Retriable: the file system may do it later.
            TransactionLost: the staged file is gone, and no target is there.
            OutcomeUnknown: the file system does not say, or what is there has another length.
            OperatorRequired: a foreign file has the target's name, or a right is missing; not committed.
            CorruptLog: the committable is none of this sink's.
        """
        names = FileNames.of(committable)
        what = self._what(committable, names)
        renamed = False
        try:
            self._publish(committable, names, what)
            renamed = True
            # Also where another call renamed it, which may have died before it could sync.
            sync_folder(self._folder)
            with contextlib.suppress(FileNotFoundError):  # emptied and then removed by somebody tidy
                sync_folder(self._staging)
        except OSError as error:
            raise commit_failed(error, what, renamed) from error

    def _publish(self, committable: Committable, names: FileNames, what: str) -> None:
        """Upholds: the target is this transaction's file, whole; or an error, and nothing was changed."""
        staged_path, target_path = self._staging / names.staged, self._folder / names.target
        # In this order: a file that another process renames meanwhile is seen twice, and never not at all.
        staged, target = _status(staged_path), _status(target_path)
        if staged is None and target is None:
            raise self._lost(committable, what)
        here = target or staged
        if staged and target and not os.path.samestat(staged, target):
            raise OperatorRequired(
                f"{what} is decided and not committed: a file that is not the transaction's has the"
                " target's name. Nothing was overwritten. Move it away; then start the query again, which"
                " repeats the commit."
            )
        if here is None or here.st_size != names.size_bytes or not stat.S_ISREG(here.st_mode):
            raise OutcomeUnknown(
                f"{what} was pre-committed with {names.size_bytes} bytes, and its"
                f" {'target' if target else 'staged file'} now has {here.st_size if here else 'none'}: it"
                " was changed by another program, or the disk lost a part. Nothing was changed. Restore it"
                " from a copy and start the query again, or give it up with 'twopc abandon'."
            )
        if target is None:
            # Not a hard link and an unlink, which could never overwrite: not every file system has hard
            # links, and Linux refuses them on another user's file. The target's name holds an id that is
            # never used twice.
            staged_path.rename(target_path)

    def abort(self, transaction: FileTransaction | Committable) -> None:
        """Remove the staged file, never a target. Not synced: what a power cut brings back is swept again."""
        if isinstance(transaction, FileTransaction):
            if transaction.writer is not None:
                transaction.writer.discard()
            with contextlib.suppress(OSError):  # the last bytes, which a full disk refuses once more
                transaction.file.close()
            transaction.path.unlink(missing_ok=True)
        else:
            (self._staging / staged_of(transaction)).unlink(missing_ok=True)

    def recover(self) -> Iterable[Committable]:
        """The staged files of this sink's pool, and nothing else that lies in the folder.

        The target is left out of the handle: a staged file's name does not tell in which format it was begun.
        """
        try:
            with os.scandir(self._staging) as entries:
                staged = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        except FileNotFoundError:
            return []
        named = ((name, transaction_of(name)) for name in staged)
        return [Committable(owned, {"staged": name}) for name, owned in named if owned and self._owns(owned)]

    def _owns(self, transaction_id: str) -> bool:
        """Whether this sink's pool has it as an exact name: the pooled ones, of four numbers, are no file's."""
        pool = self.transactional_ids
        return pool.owns(transaction_id) and transaction_id.removeprefix(pool.scope).count(".") == EXACT_DOTS

    @property
    def _staging(self) -> Path:
        return self._folder / STAGING

    @contextlib.contextmanager
    def _staged(self, transaction_id: TransactionId) -> Iterator[None]:
        """Names the batch and the transaction in an error of the file system."""
        try:
            yield
        except OSError as error:
            what = f"transaction {transaction_id.exact} of {transaction_id.round} in {self._staging}"
            raise write_failed(error, what) from error

    def _what(self, committable: Committable, names: FileNames) -> str:
        return (
            f"transaction {committable.transaction_id} of batch"
            f" {committable.handle.get('batch', 'unknown')} ({self._staging / names.staged} to"
            f" {self._folder / names.target})"
        )

    def _lost(self, committable: Committable, what: str) -> Exception:
        if not self._folder.is_dir():
            return OutcomeUnknown(
                f"{what} is decided, and the folder {self._folder} is not there. Is its disk mounted, was"
                " the option 'path' changed? Put that right; then start the query again, which repeats the"
                " commit."
            )
        return TransactionLost(
            f"{what} is decided, and neither file is there: its {committable.records} records are lost, or"
            " were committed and then removed. Was the option 'path' of this sink changed? Set it back."
            " Did another program move the committed file, or clean up the staging folder? Put one of the"
            " two files back; then start the query again, which repeats the commit."
        )


def _status(path: Path) -> os.stat_result | None:
    """None only where the system says that there is no such file: any other error is no answer."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
