"""The file sink: it writes pending files where no reader looks, and publishes each one atomically on commit.

The store (``stores/``) writes and publishes files. ``outcomes.py`` turns the store's reports into decisions. This
module contains everything that all stores share: the transaction, its committable, and the order of the steps.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from twopc.checks import CheckResult
from twopc.datasets import Dataset, of_folder
from twopc.errors import ConfigurationError, Refused, Retriable, TwoPhaseCommitError
from twopc.failures import mapped
from twopc.sink import TwoPhaseCommitSink
from twopc.threads import call_at_once
from twopc.transaction import Committable, JsonValue, Transaction
from twopc.transactional_ids import Round
from twopc_files.batch_log import CommittedFile
from twopc_files.file_names import DECIDABLE, OPEN, FileHandle, corrupt, decidable_files, open_files, target_name
from twopc_files.formats import check_schema
from twopc_files.layout import Files
from twopc_files.manifest import manifest
from twopc_files.options import FileOptions
from twopc_files.outcomes import (
    MAY_PASS,
    commit_failed,
    is_to_be_published,
    look_failed,
    not_shown_yet,
    obstacle_seen,
    request_failed,
    settle_failed,
    unreachable,
    write_failed,
)
from twopc_files.spark_metadata import spark_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from twopc.transactional_ids import TransactionId
    from twopc_files.batch_log import BatchLog
    from twopc_files.formats import Format
    from twopc_files.layout import Layout
    from twopc_files.stores.store import PendingFile, Sight, Store

ResultT = TypeVar("ResultT")

_BATCH_LOGS = {"spark": spark_metadata, "manifest": manifest}


class FileTransaction(Transaction):
    """The pending files of one task attempt.

    Attributes:
        pending: all pending files, in order of creation.
        files: distributes records over the pending files.
    """

    def __init__(self, transaction_id: TransactionId, store: Store, format: Format, layout: Layout) -> None:
        super().__init__(transaction_id)
        self.pending: list[PendingFile] = []
        self.files = Files(format, layout, self.create, store.longest_name)
        self._store = store
        self._extension = format.extension

    def create(self, folder: str) -> PendingFile:
        number = len(self.pending)
        target = target_name(self.id, number, folder, self._extension)
        self.pending.append(self._store.create(self.id.exact, number, target))
        return self.pending[-1]


class FileSink(TwoPhaseCommitSink[FileTransaction]):
    """Writes files to a folder, on a disk that every process of the query has at the same path, or in a store that
    every process reaches.

    Args:
        options: ``path``: path or URL of the folder. ``storage_options``: fsspec's options for a URL. ``format``:
            ``parquet`` (default), ``json`` (JSON lines), ``csv``, ``orc`` or ``text``. ``partition_by``: columns that
            become folders. ``batch_logs``: logs of complete batches, for readers of whole batches. The README lists
            all options.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong.
    """

    refuses_before_writing = True
    _logs: tuple[BatchLog, ...] = ()
    _logs_have_begun = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        parsed = FileOptions.parse(options)
        self._store = parsed.store
        self.output_folder = self._store.url
        self._format = parsed.format
        self._layout = parsed.layout
        self._batch_logs = parsed.batch_logs
        # Decided files that the store does not show → since when. The time of requests does not count, as the store's
        # client repeats unanswered requests by itself.
        self._hidden_since: dict[FileHandle, float] = {}

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in super().__getstate__().items() if not name.startswith("_logs")}
        return {**state, "_hidden_since": {}}

    def __repr__(self) -> str:
        return f"FileSink({self._store.url!r}, {self._format})"

    def validate(self, schema: pa.Schema) -> None:
        """Raise SchemaMismatch, which names the column, if the format or the layout can't hold a schema."""
        check_schema(self._format, self._layout.data_schema(schema))

    def open(self) -> None:
        """Connect to the store, and check the logs of complete batches. Writes nothing that stays.

        Raises:
            ConfigurationError: the store does not exist or denies access, or another writer keeps such a log there.
            Retriable: the store does not answer.
        """
        self._hidden_since.clear()  # the store may have been unreachable since the last incarnation
        with self._reaching():
            self._store.require_answer()
        self._logs, self._logs_have_begun = self._located_logs(), False
        for log in self._logs:
            log.open()

    def _begin_logs(self) -> None:
        """Create the logs of complete batches before the first commit of an incarnation. A reader that finds no log
        would read all files. Concurrent commits may call ``BatchLog.begin`` at the same time, just as two processes
        may."""
        if not self._logs_have_begun:
            for log in self._logs:
                log.begin()
            self._logs_have_begun = True

    def _located_logs(self) -> tuple[BatchLog, ...]:
        if not self._batch_logs:
            return ()
        fs, folder = self._store.located()
        owner = self.transactional_ids.scope
        return tuple(_BATCH_LOGS[name](fs, folder, owner) for name in self._batch_logs)

    def check(self) -> Iterator[CheckResult]:
        yield CheckResult.of(f"trial file in {self._store.url}", self._try)
        if self._batch_logs:
            check = f"put-if-absent for the logs of complete batches ({', '.join(self._batch_logs)})"
            yield CheckResult.of(check, self._try_logs)
        yield from self._store.check()

    def _try(self) -> None:
        """Take one file through every step, under a hidden name.

        Raises:
            ConfigurationError: this process can't take one of the steps.
            Retriable: the store does not answer.
        """
        transaction_id = self.transactional_ids.allocate(Round(0, 0), partition=0)
        target = target_name(transaction_id, 0, "", self._format.extension)
        with self._reaching(), self._store.for_a_trial():
            pending = self._store.create(transaction_id.exact, 0, target)
            try:
                pending.write(b"doctor")
                pending.close()
                if obstacle := self._obstacle(pending.handle):
                    raise ConfigurationError(f"a file in {self._store.url} could not be committed: {obstacle}")
                self._store.rehearse(pending.handle)
            finally:
                pending.discard()

    def _try_logs(self) -> None:
        with self._asking():
            for log in self._located_logs():
                log.require_put_if_absent()

    def _reaching(self) -> contextlib.AbstractContextManager[None]:
        return mapped(OSError, unreachable, self._store.url)

    # On a participant. --------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> FileTransaction:
        """Start a transaction, without any effect on the store. The first record creates the first file."""
        return FileTransaction(transaction_id, self._store, self._format, self._layout)

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """Write the records of ``batch`` to pending files.

        Raises:
            SchemaMismatch: the schema differs from that of the first batch.
            RecordRefused: the format, or the name of a partition folder, can't hold a record. None of the batch is
                written.
            ConfigurationError: this process may not create files there.
            OSError: the store failed in another way, such as a full disk.
        """
        with self._writing(transaction.id):
            transaction.files.write(batch)

    def pre_commit(self, transaction: FileTransaction) -> Committable:
        """Make every file durable, and vote yes. Raises OSError if any byte is not durable."""
        with self._writing(transaction.id):
            transaction.files.finish()
        if not transaction.pending:
            raise ValueError(f"transaction {transaction.id.exact} has no record, and would be a file without a schema")
        files: list[JsonValue] = [file.handle.to_json() for file in transaction.pending]
        handle: dict[str, JsonValue] = {DECIDABLE: files, "batch": transaction.id.round.batch_id}
        return Committable(transaction.id.exact, handle, transaction.records)

    # On the coordinator. ------------------------------------------------------------------------------------

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002  # no file grows too old
        """Veto the batch if this process can't commit one of its files, while the round can still be rolled back.

        Raises:
            Refused: a pending file does not exist here (participants write to another disk), is not whole, or can't
                be published. Nothing is visible.
        """
        work = [(committable, file) for committable in committables for file in self._decidable(committable)]
        obstacles = call_at_once(self._obstacle, [file for _, file in work], self._store.asks_at_once)
        for (committable, file), obstacle in zip(work, obstacles, strict=True):
            if obstacle:
                raise Refused(
                    f"{self._what(committable, file)} could not be committed, so it is rolled back, and nothing is"
                    f" visible: {obstacle}"
                )
        self._begin_logs()
        return committables

    def _obstacle(self, file: FileHandle) -> str | None:
        """Return why this process can't commit ``file``, and what to do about it. Return None if the process can commit
        it."""
        try:
            return obstacle_seen(self._store.look(file), file) or self._store.obstacle(file)
        except OSError as error:
            if error.errno in MAY_PASS:
                raise
            return f"{error}."

    def commit(self, committable: Committable) -> None:
        """Publish every file of the transaction, durably.

        Raises:
            Retriable: the store may publish the file later.
            TransactionLost: neither the pending file nor the target exists.
            OutcomeUnknown: the store does not report the outcome, or the file has another length.
            OperatorRequired: a foreign file has the target's name, or a permission is missing.
            CorruptLog: the committable is not this sink's.
        """
        files = self._decidable(committable)
        self._begin_logs()  # another process may have sealed the batch, or a log may have been removed since
        answers = call_at_once(partial(self._failure, committable), files, self._store.asks_at_once)
        failures = [failure for failure in answers if failure]
        if failures:
            # A file that can't be published must not hold back the others: repeat first, then call an operator.
            raise min(failures, key=lambda failure: not isinstance(failure, Retriable))

    def _failure(self, committable: Committable, file: FileHandle) -> TwoPhaseCommitError | None:
        """Publish one file. Return the error, or None on success.

        Upholds: on success the target has been seen, and is this transaction's file, whole and durable.
        """
        what = self._what(committable, file)
        published = False
        try:
            seen = self._look(file, what)
            if self._may_appear(file, seen):
                return not_shown_yet(what)
            if is_to_be_published(seen, file, what, committable.records):
                self._store.publish(file, seen)
            published = True
            self._store.settle(file)
        except OSError as error:
            failure = settle_failed(error, what) if published else commit_failed(error, what)
            failure.__cause__ = error
            return failure
        except TwoPhaseCommitError as error:
            return error
        return None

    def _look(self, file: FileHandle, what: str) -> Sight:
        """Look at a decided file. A failed look restarts the wait for a hidden file: a store that does not answer is
        not hiding the file."""
        began_s = time.monotonic()
        try:
            seen = self._store.look(file)
        except OSError as error:
            self._hidden_since.pop(file, None)
            raise look_failed(error, what) from error
        if file in self._hidden_since:
            self._hidden_since[file] += time.monotonic() - began_s
        return seen

    def _may_appear(self, file: FileHandle, seen: Sight) -> bool:
        """Whether the store shows neither the target nor the whole pending file, and may be publishing the file right
        now, for this process or another one."""
        if seen.target_bytes is not None or seen.pending_bytes == file.size_bytes:
            self._hidden_since.pop(file, None)
            return False
        now_s = time.monotonic()
        return now_s - self._hidden_since.setdefault(file, now_s) < self._store.may_hide_s(file)

    def discard(self, transaction: FileTransaction) -> None:
        transaction.files.discard()
        for pending in transaction.pending:
            pending.discard()

    def abort(self, committable: Committable) -> None:
        """Remove the pending files, never a target.

        Raises:
            Retriable: the store is busy or does not answer.
        """
        files = self._owned(committable, open_files(committable))
        with self._asking():
            call_at_once(self._store.discard, files, self._store.asks_at_once)

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        files = [
            CommittedFile(file.target, file.size_bytes or 0)
            for committable in committables
            for file in self._decidable(committable)
        ]
        self._begin_logs()  # a batch without transactions has no commit before this
        for log in self._logs:
            log.complete(batch_id, files)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset]:  # noqa: ARG002
        return [of_folder(self._store.url, getattr(self._store, "storage_options", {}))]  # a disk has none

    def recover(self) -> Iterable[Committable]:
        """Return the pending files whose names belong to this sink's pool, and no other files.

        Raises:
            Retriable: the store is busy or does not answer.
        """
        with self._asking():
            owns = self.transactional_ids.owns_exact
            pending = [file for file in self._store.pending() if owns(file.transaction_id)]
        pending.sort(key=lambda file: file.transaction_id)
        return [
            Committable(transaction_id, {OPEN: [file.to_json() for file in files]})
            for transaction_id, files in groupby(pending, lambda file: file.transaction_id)
        ]

    def _decidable(self, committable: Committable) -> list[FileHandle]:
        return self._owned(committable, decidable_files(committable))

    def _owned(self, committable: Committable, files: list[FileHandle]) -> list[FileHandle]:
        """Check the owner of ``files``, and return them. Raises CorruptLog: the transaction belongs to another sink, or
        one of the files can't belong to the transaction in this store."""
        if not self.transactional_ids.owns_exact(committable.transaction_id):
            raise corrupt(committable, "transaction_id", committable.transaction_id)
        for file in files:
            if not self._store.owns(file):
                raise corrupt(committable, "staged", file.pending)
        return files

    def _writing(self, transaction_id: TransactionId) -> contextlib.AbstractContextManager[None]:
        what = f"transaction {transaction_id.exact} of {transaction_id.round} in {self._store.url}"
        return mapped(OSError, write_failed, what)

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        return mapped(Exception, request_failed, self._store.url)

    def _what(self, committable: Committable, file: FileHandle) -> str:
        batch = committable.handle.get("batch", "unknown")
        return f"transaction {committable.transaction_id} of batch {batch} ({self._store.where(file)})"
