"""The Delta sink: tasks write Parquet files that belong to no version of the table yet, and one log entry adds all
files of a batch.

``writer.py`` writes the files, ``notes.py`` records the files for recovery, and ``commit.py`` puts the entry. This
module calls them in order.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import Schema

from twopc.checks import CheckResult
from twopc.columns import not_whole, require_keys
from twopc.datasets import Dataset, of_folder
from twopc.errors import ConfigurationError, RoundAborted
from twopc.failures import mapped
from twopc.keyed import KeyedSink
from twopc.sink import WholeBatchSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId
from twopc_delta import outcomes
from twopc_delta.changes import require_key, require_own_files
from twopc_delta.checks import checks
from twopc_delta.columns import Fit, as_added, fit, missing, type_names
from twopc_delta.commit import TableLog, load, mark_of
from twopc_delta.log_files import LogFiles
from twopc_delta.notes import Note, Notes
from twopc_delta.options import DeltaOptions
from twopc_delta.prepared import vote_of
from twopc_delta.table import TableView
from twopc_delta.writer import TaskFiles

logger = logging.getLogger(__name__)


class DeltaTransaction(Transaction):
    """The files of one task attempt.

    Attributes:
        files: the sorted column names → the files of the records with these columns. The order of the columns may
            differ between writes.
        deletes: the files with the keys of rows to delete; None if there are none.
        checked: the schema of the last records that were checked against the table.
    """

    deletes: TaskFiles | None = None
    checked: pa.Schema | None = None

    def __init__(self, transaction_id: TransactionId) -> None:
        super().__init__(transaction_id)
        self.files: dict[tuple[str, ...], TaskFiles] = {}

    @property
    def written(self) -> list[TaskFiles]:
        return [*self.files.values(), *([self.deletes] if self.deletes is not None else [])]

    @property
    def paths(self) -> list[str]:
        """The paths of all of its files."""
        return [path for files in self.written for path in files.paths]


class DeltaSink(WholeBatchSink[DeltaTransaction], KeyedSink[DeltaTransaction]):
    """Writes records to a Delta table on a local disk or in an object store, each batch as one version of the table.

    Args:
        options: ``path``: the folder of the table, which must exist. ``storage_options``: access to its store, such as
            credentials. ``merge_schema``: add columns that the table lacks. ``target_file_bytes``: the target size of a
            file. ``upsert_by``: the columns by which a record replaces a row.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. No request was made.
    """

    refuses_before_writing = True
    _view: TableView | None = None

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = DeltaOptions.parse(options)
        self._storage = self._options.storage
        self.output_folder = self._storage.url

    def __repr__(self) -> str:
        return f"DeltaSink({self._storage.url!r})"

    @property
    def _name(self) -> str:
        return f"table {self._storage.url}"

    @functools.cached_property
    def _log(self) -> TableLog:
        return TableLog(self._storage, mark_of(self.transactional_ids.scope), self._name)

    def __getstate__(self) -> dict[str, object]:
        # The cached state of the table's log stays in this process.
        return {name: value for name, value in super().__getstate__().items() if name != "_log"}

    def close(self) -> None:
        """Drop the cached state of the table's log."""
        self.__dict__.pop("_log", None)

    # Before a batch. --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Check the table, and that its store lets only one of two concurrent commits win.

        Raises:
            ConfigurationError: there is no table; it has a table feature that the sink does not support; or its store
                lacks put-if-absent.
            LogMismatch: the table lacks the last batch that the commit log records as committed to it.
            Retriable: the store does not respond.
        """
        with outcomes.looking(self._storage, f"a look at {self._name}", is_decided=False):
            log = self._log  # creates the store's client
        self._view = self._supported(log.opened(self.last_committed_batch_id))
        self._require_put_if_absent()
        if self.key:
            with outcomes.looking(self._storage, f"a look at {self._name}", is_decided=False):
                require_own_files(LogFiles(self._storage), self._view.version, self._name)

    def _looked_at(self) -> TableView:
        """Return the current table, without the sink's mark. The name of the mark is unknown until the coordinator
        binds the sink, which happens after ``validate``."""
        return self._supported(TableView.of(load(self._storage, f"a look at {self._name}")))

    def _supported(self, view: TableView) -> TableView:
        """Return ``view`` if the sink supports the table. Otherwise raises ConfigurationError."""
        view.refuse_unsupported(self._name)
        if self.key:
            require_key(view, self.key, self._name)
        return view

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    def _require_put_if_absent(self) -> None:
        try:
            with self._storage.meaning():
                folder = self._storage.notes()
                folder.names()  # so that the trial removes files that killed writers have left
                folder.try_put_if_absent()
            LogFiles(self._storage).try_put()
        except OSError as error:
            advice = "" if self._storage.store is None else self._storage.store.advice
            raise outcomes.put_refused(self._failure(error), self._name, advice) from None

    def _failure(self, error: Exception) -> outcomes.Failure:
        return outcomes.Failure.of(error, self._storage)

    def validate(self, schema: pa.Schema) -> None:
        """Check that records fit into the table. With ``merge_schema``, add missing columns to it.

        Raises:
            SchemaMismatch: a column does not fit. The error names the column.
        """
        view = self._looked_at()
        if self._options.merge_schema and (new := missing(schema, view)):
            wider = pa.schema([*view.schema, *as_added(new, view, self._name)])
            fit(schema, replace(view, schema=wider), self._name)  # before the table is changed
            self._require_put_if_absent()  # this may come before ``open``
            self._add_columns(new)
            view = self._looked_at()
        fit(schema, view, self._name)
        self._require_whole(schema, view)
        self._view = view

    def _require_whole(self, schema: pa.Schema, view: TableView) -> None:
        """With a key, raise SchemaMismatch for records that lack a column, because each record replaces a whole row."""
        known = {name.lower() for name in schema.names}
        lacking = [name for name in view.schema.names if name.lower() not in known]
        if self.key and lacking:
            raise not_whole(lacking[0], self._name)

    def _add_columns(self, new: Sequence[pa.Field]) -> None:
        """Add columns in a separate entry. If another process was faster, the next look finds its columns."""
        table = load(self._storage, f"new columns of {self._name}")
        view = TableView.of(table)
        if not (lacking := missing(pa.schema(new), view)):
            return
        added = Schema.from_arrow(as_added(lacking, view, self._name))
        with outcomes.looking(self._storage, f"new columns of {self._name}", is_decided=False):
            table.alter.add_columns(added.fields)

    def check(self) -> Iterator[CheckResult]:
        view = self._looked_at()
        yield CheckResult.passed(f"{self._name}: existence", f"columns {', '.join(view.schema.names)}")
        yield CheckResult.of("put-if-absent in the table's store", self._require_put_if_absent)
        with outcomes.looking(self._storage, f"a look at {self._name}", is_decided=False):
            yield from checks(view, self._storage, is_keyed=bool(self.key))

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> DeltaTransaction:
        """Create nothing yet: the first record creates the first file."""
        return DeltaTransaction(transaction_id)

    def write(self, transaction: DeltaTransaction, batch: pa.RecordBatch) -> None:
        with self._writing(transaction.id):
            names = [name.lower() for name in batch.schema.names]
            key = tuple(sorted(names))
            if batch.schema != transaction.checked:
                fitted = fit(batch.schema, self._table(), self._name)
                self._require_whole(batch.schema, fitted.view)
                if key not in transaction.files:
                    transaction.files[key] = self._files(transaction, fitted)
                transaction.checked = batch.schema
            files = transaction.files[key]
            self._write(files, batch.select([names.index(field.name.lower()) for field in files.fit.schema]))

    def delete(self, transaction: DeltaTransaction, keys: pa.RecordBatch) -> None:
        with self._writing(transaction.id):
            if transaction.deletes is None:
                view = self._table()
                fit = Fit(pa.schema([view.schema.field(name) for name in self.key]), (), view)
                transaction.deletes = self._files(transaction, fit)
            self._write(transaction.deletes, keys)

    def _write(self, files: TaskFiles, batch: pa.RecordBatch) -> None:
        require_keys(batch.rename_columns(files.fit.schema.names), self.key)
        files.write(batch)

    def _table(self) -> TableView:
        if self._view is None:
            self._view = self._looked_at()
        return self._view

    def _files(self, transaction: DeltaTransaction, fit: Fit) -> TaskFiles:
        fit = replace(fit, longest_folder_bytes=self._storage.longest_folder_bytes)
        notes, name = Notes(self._storage), transaction.id.exact

        def announce() -> None:
            notes.write(name, Note(transaction.paths))

        return TaskFiles(self._storage, fit, name, self._options.target_file_bytes, announce)

    def pre_commit(self, transaction: DeltaTransaction) -> Committable:
        name = transaction.id.exact
        if not transaction.written:
            raise ValueError(f"transaction {name} has no record")
        with self._writing(transaction.id):
            files = [file for each in transaction.files.values() for file in each.finish()]
            deletes = [] if transaction.deletes is None else transaction.deletes.finish()
            for file in (*files, *deletes):
                if (found := self._storage.size_bytes(file.path)) != file.size_bytes:
                    now = "is not there" if found is None else f"has {found} bytes"
                    raise RoundAborted(
                        f"file {file.path} of transaction {name} was written with {file.size_bytes} bytes, and {now}."
                        " Was it removed or replaced, or does its store keep something else than it was sent? The batch"
                        " can be run again."
                    )
            view = transaction.written[0].fit.view
            columns = type_names([field for each in transaction.written for field in each.fit.schema])
            note = Note([], view.id, columns, view.required, view.partition_by, files, self.key, deletes)
            data = Notes(self._storage).write(name, note)
        return vote_of(name, data, len(files), transaction.records)

    @contextlib.contextmanager
    def _writing(self, transaction_id: TransactionId) -> Iterator[None]:
        with mapped(OSError, self._write_failed, transaction_id, hides_cause=True), self._storage.meaning():
            yield

    def _write_failed(self, error: OSError, transaction_id: TransactionId) -> ConfigurationError | RoundAborted:
        failure = self._failure(error)
        what = f"transaction {transaction_id.exact} to {self._name} could not be written: {failure.text}"
        if failure.is_refusal:
            return ConfigurationError(f"{what}. Correct the rights or 'storage_options', and start again.")
        return RoundAborted(f"{what}. Nothing of it is visible. The batch can be run again.")

    def discard(self, transaction: DeltaTransaction) -> None:
        with self._writing(transaction.id):
            for files in transaction.written:
                files.discard()
            if transaction.paths:
                Notes(self._storage).remove(transaction.id.exact)

    # On the coordinator. ----------------------------------------------------------------------------------------

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch if the table could not accept it now; otherwise add the table's id and mark to each
        transaction."""
        if not committables:
            return committables
        for committable in committables:
            self.transactional_ids.exact(committable.transaction_id)
        batch_id = self.transactional_ids.round_of(committables[0].transaction_id).batch_id
        return self._log.seal(committables, batch_id)

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        for committable in committables:
            self.transactional_ids.exact(committable.transaction_id)
        self._log.commit(batch_id, committables)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset]:  # noqa: ARG002
        return [of_folder(self._storage.url, self._storage.options)]

    def abort(self, committable: Committable) -> None:
        """Remove the files that an undecided transaction's note lists, and the note.

        The note of a pre-committed transaction lists no such files, so only the note is removed. A commit may have
        added the transaction's files to the table, even if the table does not show the mark. Otherwise VACUUM removes
        the files.
        """
        name, notes = self.transactional_ids.exact(committable.transaction_id), Notes(self._storage)
        what = f"transaction {name} of {self._name} is to be rolled back"
        with outcomes.looking(self._storage, what, is_decided=True):
            data = notes.read(name)
            if data is None:
                return
            try:
                paths = Note.from_bytes(data).paths  # empty once it is pre-committed
            except ValueError as error:  # decides nothing, so the transaction can still be ended
                paths = []
                logger.warning("%s, and %s is damaged (%s): VACUUM removes its files", what, notes.place(name), error)
            for path in paths:
                self._storage.remove(path)
            notes.remove(name)

    def recover(self) -> Iterable[Committable]:
        with outcomes.looking(self._storage, f"the notes beside {self._name}", is_decided=True):
            names = Notes(self._storage).transaction_ids()
        return [Committable(name, {}) for name in sorted(names) if self.transactional_ids.owns_exact(name)]
