"""The Iceberg sink: one transaction per task attempt, one snapshot per batch.

A task writes Parquet files and a manifest that names them. Readers do not see these files, because no snapshot includes
them yet. The coordinator joins the manifests of a batch (``batch_manifests.py``) and commits them as one snapshot
(``snapshot.py``). Any process can do so.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from twopc.datasets import Dataset, of_folder
from twopc.errors import (
    LogMismatch,
    OperatorRequired,
    Refused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.failures import Lag, mapped, older_log
from twopc.keyed import KeyedSink
from twopc.sink import WholeBatchSink
from twopc.transaction import Committable, JsonValue, Transaction
from twopc.transactional_ids import TransactionId
from twopc_iceberg.batch_manifests import BatchManifest, FileChanged, of_batch
from twopc_iceberg.catalogs import Lake
from twopc_iceberg.checks import examine
from twopc_iceberg.columns import check_columns
from twopc_iceberg.joint import Part, commit_parts
from twopc_iceberg.keys import require_key, require_spec, require_whole
from twopc_iceberg.manifests import ManifestLists, entries
from twopc_iceberg.merging import ManifestMerger, target_bytes
from twopc_iceberg.notes import Mark, Note, Notes
from twopc_iceberg.options import IcebergOptions
from twopc_iceberg.outcomes import (
    CATALOG_ERRORS,
    CatalogAnswer,
    Damaged,
    answer,
    asked_in_vain,
    commit_failed,
    is_refused_by_store,
    told,
)
from twopc_iceberg.positions import REWRITE, Keys, Positions, unfit
from twopc_iceberg.prepared import Prepared, of_committable, to_handle
from twopc_iceberg.snapshot import Added, BatchCommitter, DecidedBatch, head
from twopc_iceberg.support import obstacle, require_honest, require_supported
from twopc_iceberg.table import TableForTasks, are_expiring, are_given_out
from twopc_iceberg.writer import TransactionWriter

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from typing_extensions import Self  # typing has it from Python 3.11 on

    from twopc.checks import CheckResult
    from twopc_iceberg.files import DurableFileIO

logger = logging.getLogger(__name__)

_MARK, _BRANCH = "mark", "branch"
"""Keys in the handle of a sealed transaction: the table's mark before the decision, and the transaction's branch."""

TRUSTED_S = 60.0
"""How long a batch's files count as present after ``seal`` has checked them. Cleanup jobs spare new files for much
longer."""

_OF_THIS_PROCESS = (
    "_lake",
    "_lists",
    "_positions",
    "_committer",
    "_merger",
    "_look",
    "_protected",
    "_committed",
    "_lag",
)
"""Attributes that stay in this process and are not sent to tasks."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The parts of a batch that ``seal`` has read.

    Attributes:
        names: the names of its transactions.
        since_s: when its files were last seen, by the monotonic clock.
        manifests: its manifests.
        keys: the keys of the rows that its commit searches for.
    """

    names: frozenset[str]
    since_s: float
    manifests: Sequence[BatchManifest]
    keys: Keys | None = None


class IcebergTransaction(Transaction):
    """A live transaction, with its writer and its notes."""

    def __init__(self, transaction_id: TransactionId, writer: TransactionWriter, notes: Notes) -> None:
        super().__init__(transaction_id)
        self.writer = writer
        self.notes = notes


class IcebergSink(WholeBatchSink[IcebergTransaction], KeyedSink[IcebergTransaction]):
    """Writes records to an Iceberg table, matching columns by name. A batch appears as one snapshot.

    Args:
        options: ``table``: its namespace and name. ``catalog``: the catalog's name; ``catalog.*``: its properties.
            ``branch``: the branch to append to. ``target_file_bytes``: the size at which a task begins a new file.
            ``upsert_by``: the columns by which a record replaces a row. ``deletes``: how that row is deleted.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. No connection was made.
    """

    refuses_before_writing = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = IcebergOptions.parse(options)
        self._for_tasks: TableForTasks | None = None
        self._start()

    def _start(self) -> None:
        """Create the attributes that stay in this process."""
        self._lake = Lake(self._options)
        self._lists = ManifestLists()
        self._positions = Positions()
        self._committer = BatchCommitter(self._lake, self._lists, self._positions)
        self._merger = ManifestMerger(self._lake, self._lists)
        self._look: _Look | None = None
        self._protected = frozenset[str]()  # the transactions whose notes this process has removed
        self._committed: int | None = None
        self._lag = Lag()

    def __repr__(self) -> str:
        return f"IcebergSink({self._options})"

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._start()

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> IcebergTransaction:
        name = transaction_id.exact
        with self._writing(name):
            if self._for_tasks is None or are_expiring(self._for_tasks.io_properties):
                self._for_tasks = TableForTasks.of(self._lake.load())
            table = self._for_tasks
            notes = Notes(table.io(), table.parsed.location, self.transactional_ids.scope)
            writer = TransactionWriter(table, name, functools.partial(notes.write, name), self._options)
            return IcebergTransaction(transaction_id, writer, notes)

    def write(self, transaction: IcebergTransaction, batch: pa.RecordBatch) -> None:
        with self._writing(transaction.id.exact):
            transaction.writer.write(batch)

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    def delete(self, transaction: IcebergTransaction, keys: pa.RecordBatch) -> None:
        with self._writing(transaction.id.exact):
            transaction.writer.delete(keys)

    def pre_commit(self, transaction: IcebergTransaction) -> Committable:
        name = transaction.id.exact
        with self._writing(name):
            prepared = transaction.writer.finish()
            if not transaction.notes.exists(name):
                raise RoundAborted(f"transaction {name} to {self._options} was rolled back while it was written")
            if (changed := transaction.writer.changed_file()) is not None:
                raise RoundAborted(
                    f"the store does not have file {changed} of {self._options} as it was written: transaction {name}"
                    " was rolled back, or the store has lost or changed it"
                )
        return Committable(name, to_handle(prepared), transaction.records)

    def discard(self, transaction: IcebergTransaction) -> None:
        """Remove the transaction's files. Its writer knows them, so no note is needed."""
        with self._writing(transaction.id.exact):
            transaction.writer.discard()
            transaction.notes.remove([transaction.id.exact])

    def _writing(self, name: str) -> contextlib.AbstractContextManager[None]:
        return mapped(CATALOG_ERRORS, self._not_written, name)

    def _not_written(self, error: Exception, name: str) -> RoundAborted | Refused:
        says = f"transaction {name} to {self._options} could not be written: {told(error)}."
        if self._is_temporary(error):
            return RoundAborted(f"{says} The batch can be run again.")
        return Refused(f"{says} That does not go away by itself. Correct it, and start again.")

    def _is_temporary(self, error: Exception) -> bool:
        """Return whether a task's error may be transient, for example until the catalog issues new credentials."""
        properties = {} if self._for_tasks is None else self._for_tasks.io_properties
        are_renewed = are_given_out(properties) and not are_given_out(self._options.properties)
        is_over = are_renewed and is_refused_by_store(error)
        return is_over or answer(error) in (CatalogAnswer.REPEAT, CatalogAnswer.CONFLICT)

    # On the coordinator, before the decision. -------------------------------------------------------------------

    def open(self) -> None:
        """Load the table. Check that the sink can write it, and that the catalog enforces requirements.

        Raises:
            ConfigurationError: there is no such table or branch, the table has a feature that the sink does not
                support, or the catalog ignores requirements.
            LogMismatch: the table lacks the last batch that the log records as committed to it.
            Retriable: the catalog does not respond, or returns an older version of the table.
        """
        what = f"the start of a query into {self._options}"
        with self._undecided(what):
            table = self._lake.load()
            require_supported(table, self._options)
            require_honest(table, self._options)
            self._require_no_gap(table.metadata)
        self._use(TableForTasks.of(table))

    def validate(self, schema: pa.Schema) -> None:
        with self._undecided(f"a look at {self._options}"):
            if self._for_tasks is None:
                self._for_tasks = TableForTasks.of(self._lake.load())
        what, columns = str(self._options), self._for_tasks.schema
        check_columns(schema, columns, what)
        if self.key:
            require_key(columns, self.key, what)
            require_whole(schema, columns, what)

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch if it can no longer be committed. Otherwise record the table's mark before the decision.

        Checks every file of the batch, because a snapshot with a missing file can't be read.
        """
        if not committables:
            return committables
        what = f"a look at {self._options} before the decision"
        with self._undecided(what):
            prepared, table = self._prepared(committables), self._lake.load()
            metadata = table.metadata
            self._require_same_table(metadata, prepared)
            found = self._undecided_mark(metadata, committables)
            if any(each.equality_ids and not each.by_position for each in prepared) and require_spec(table):
                table = self._lake.load()
            # The manifests of the branch, on which the commit will build.
            io, key = self._lake.io(), next((each.equality_ids for each in prepared if each.by_position), None)
            manifests = self._lists.live(io, head(metadata, self._options.branch, what))
            if key and (why := unfit(self._positions.files(io, manifests, key), metadata)):
                raise Refused(f"{self._options} {why}: {REWRITE}, or use deletes=equality.")
            if why := obstacle(table, prepared, self._lake.io()):
                raise RoundAborted(f"{self._options} was changed while the batch was written: it {why}")
            since_s = time.monotonic()
            try:
                of_tasks, keys = self._of_batch(prepared)
                if keys is not None:
                    self._positions.require_searchable(metadata, io, manifests, keys)
            except FileChanged as changed:
                raise RoundAborted(
                    f"file {changed.location} of {self._options} is not there as its task has written it: the"
                    " transaction was rolled back, or the store has lost or changed the file"
                ) from None
        self._look = _Look(_names(committables), since_s, of_tasks, keys)
        sealed: Mapping[str, JsonValue] = {_MARK: found, _BRANCH: self._options.branch}
        return [replace(committable, handle={**committable.handle, **sealed}) for committable in committables]

    def _require_no_gap(self, metadata: TableMetadata) -> None:
        """Compare the table with the last batch that the log records as committed to this sink. Upholds: no batch
        follows a lost one, for example after the catalog was restored from a backup while the query was stopped.

        Raises:
            Retriable: the table lacks that batch. LogMismatch: the table still lacks the batch after a while.
        """
        found, last = self._mark().found(metadata), self.last_committed_batch_id
        # A table without a mark may not be the one of the log's batches: the log knows only the sink's name.
        if found is not None and last is not None:
            self._committed = max(last, self._committed or 0)
        if self._committed is not None and (found is None or found < self._committed):
            raise self._fell_back(self._committed, found)
        self._lag.end()

    def _undecided_mark(self, metadata: TableMetadata, committables: Sequence[Committable]) -> int | None:
        """Return the table's mark, and check that it fits an undecided batch.

        Raises:
            LogMismatch: the table already has this batch, although the log has not decided it. The log is older than
                the table. Errors of ``_require_no_gap`` pass through.
        """
        batch_id = self.transactional_ids.round_of(committables[0].transaction_id).batch_id
        found = self._mark().found(metadata)
        if found is not None and found >= batch_id:
            raise older_log(str(self._options), found, batch_id)
        self._require_no_gap(metadata)
        return found

    def _fell_back(self, committed: int, found: int | None) -> Retriable | LogMismatch:
        """Return the error for a table that lacks a batch committed to it. The catalog's response may be stale, so the
        error is final only after the catalog has repeated it for a while."""
        return self._lag.failure(
            f"{self._options} had batch {committed} of this query, and the catalog shows"
            f" {'none' if found is None else f'batch {found}'}",
            "Start again first: if the log does not have the last batch as complete, it is committed again. Else"
            " restore what is lost; or write the missing records by other means, set the table's property"
            f" {self._mark().property!r} to {committed}, and start again.",
        )

    def _require_same_table(self, metadata: TableMetadata, prepared: Sequence[Prepared]) -> None:
        if any(each.table != str(metadata.table_uuid) for each in prepared):
            raise RoundAborted(f"{self._options} was dropped and created again while the batch was written")

    @contextlib.contextmanager
    def _undecided(self, what: str) -> Iterator[None]:
        """Map the errors of a request before the decision, as ``_asking`` does. Nothing is decided yet, so errors that
        require an operator become refusals of the batch."""
        try:
            with self._asking(what):
                yield
        except OperatorRequired as error:
            raise Refused(error.message) from error

    def _of_batch(self, prepared: Sequence[Prepared]) -> tuple[list[BatchManifest], Keys | None]:
        """Return the manifests of a batch, and the keys of the rows that its commit searches for.

        Raises:
            FileChanged: a file of the batch is missing or differs from what its task wrote.
        """
        table, io = self._lake.table(), self._lake.io()
        locate = table.location_provider().new_metadata_location
        manifests = of_batch(io, prepared, target_bytes(table.metadata.properties), locate)
        lengths = {location: length for each in manifests for location, length in each.files().items()}
        if (changed := io.first_changed(lengths)) is not None:
            raise FileChanged(changed)
        if not (of_keys := [each for each in manifests if each.prepared.by_position]):
            return manifests, None
        ids = of_keys[0].prepared.equality_ids or []
        return manifests, Keys.read(io, ids, [location for each in of_keys for location in each.files()])

    # On the coordinator, after the decision. --------------------------------------------------------------------

    @property
    def commit_group(self) -> Hashable | None:
        """The catalog, if it can change several tables in one request."""
        return self._lake.group

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        """Try to make the batch visible in all tables in one request. Each sink's ``commit_batch`` then checks whether
        the batch is visible."""
        commit_parts([functools.partial(sink._part, batch_id, of_sink) for sink, of_sink in due.items()])  # noqa: SLF001  # of this class

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        part = self._part(batch_id, committables)
        self._committer.commit(part.batch, part.manifests)
        self._look, self._protected, self._committed = None, frozenset(), max(batch_id, self._committed or 0)
        with self._asking(part.batch.what, commit_failed):
            self._use(TableForTasks.of(self._lake.table()))

    def _part(self, batch_id: int, committables: Sequence[Committable]) -> Part:
        """Return this table's part of the batch, after protecting its files from aborts."""
        branch = self._branch(committables)
        where = replace(self._options, branch=branch)
        prepared, names = self._prepared(committables), _names(committables)
        batch = DecidedBatch(
            mark=self._mark(),
            mark_before=self._mark_before(committables),
            batch_id=batch_id,
            branch=branch,
            table=prepared[0].table,
            prepared=prepared,
            what=f"batch {batch_id} of {len(committables)} transactions to {where} is decided",
        )
        if self._protected != names:
            with self._asking(batch.what, commit_failed):
                self._notes().remove(names)  # without its note, no abort removes a transaction's files
            self._protected = names
        return Part(self._lake, self._committer, batch, functools.cache(lambda: self._written(prepared, names)))

    def _written(self, prepared: Sequence[Prepared], names: frozenset[str]) -> Added:
        """Write the joined manifests of a decided batch, and read its keys. Raises FileChanged."""
        look, io = self._look, self._lake.io()
        if look is not None and look.names == names and time.monotonic() - look.since_s < TRUSTED_S:
            manifests, keys = look.manifests, look.keys
        else:
            manifests, keys = self._of_batch(prepared)
        for each in manifests:
            each.write(io)
        return Added([each.prepared for each in manifests if not each.prepared.by_position], keys)

    def _use(self, table: TableForTasks) -> None:
        """Use the current table for the next batches. If its columns have changed, records are validated again."""
        if self._for_tasks is None or table.schema != self._for_tasks.schema:
            self._validated = None
        self._for_tasks = table

    def _prepared(self, committables: Iterable[Committable]) -> list[Prepared]:
        """Return the manifests of this sink's transactions. Raises CorruptLog for a transaction that is not this
        sink's."""
        found: list[Prepared] = []
        for committable in committables:
            self.transactional_ids.exact(committable.transaction_id)
            try:
                found += of_committable(committable)
            except (KeyError, TypeError):
                self._not_ours(committable)
        return found

    def _mark_before(self, committables: Sequence[Committable]) -> int | None:
        found = [committable.handle.get(_MARK) for committable in committables]
        return max((mark for mark in found if isinstance(mark, int)), default=None)

    def _branch(self, committables: Sequence[Committable]) -> str:
        """Return the branch for which the batch was decided. The option may have changed since then."""
        branch = committables[0].handle.get(_BRANCH)
        return branch if isinstance(branch, str) else self._not_ours(committables[0])

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Remove the tasks' manifests that were joined, and merge the table's small manifests."""
        if not committables:
            return
        what = f"batch {batch_id} is visible in {self._options}, and manifests of its tasks are left over"
        with self._asking(what, commit_failed):
            if (snapshot := self._snapshot_of(batch_id)) is not None:
                io, prepared = self._lake.io(), self._prepared(committables)
                used = {manifest.manifest_path for manifest in self._lists.read(io, snapshot)}
                io.remove(_files_of_keys(io, prepared))
                io.remove({each.manifest for each in prepared} - used)
        self._merger.merge(self._branch(committables))

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        """Return the table, named by its location as in OpenLineage's Spark integration. None before ``open``."""
        return None if self._for_tasks is None else [of_folder(self._for_tasks.parsed.location)]

    def abort(self, committable: Committable) -> None:
        """Remove the transaction's files, unless a snapshot may include them.

        A transaction without a note was decided (``commit_batch``), aborted or discarded. None of its files are
        removed. Some stores may still list a removed note, so the table is checked, too.
        """
        name = self.transactional_ids.exact(committable.transaction_id)
        with self._asking(f"transaction {name} of {self._options} is to be rolled back"):
            notes = self._notes()
            try:
                note = notes.read(name)
            except Damaged as damaged:
                logger.warning(
                    "%s. Transaction %s is not decided, and its note is removed. What it has written is left for"
                    " remove_orphan_files.",
                    *(damaged, name),
                )
                note = None
            if note is not None and not self._may_be_visible(name, note):
                self._lake.io().remove([*note.files, note.manifest])
            notes.remove([name])

    def _may_be_visible(self, name: str, note: Note) -> bool:
        """Return whether a snapshot may include the transaction's files. A task attempt that lost to another one is in
        no snapshot, even if its batch is visible."""
        table = self._lake.load()
        batch_id = self.transactional_ids.round_of(name).batch_id
        found = self._mark().found(table.metadata)
        if found is None or found < batch_id:
            return False
        if (snapshot := self._snapshot_of(batch_id)) is None:
            return True  # the snapshot has expired
        io, files = self._lake.io(), {*note.files}
        added = (each for each in self._lists.read(io, snapshot) if each.added_snapshot_id == snapshot.snapshot_id)
        return any(not files.isdisjoint(_data_files(io, each)) for each in added)

    def _snapshot_of(self, batch_id: int) -> Snapshot | None:
        """Return the snapshot that made the batch visible, if the table as last loaded still has it."""
        metadata = self._lake.table().metadata
        snapshot_id = self._mark().snapshot(metadata, batch_id)
        return None if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)

    def recover(self) -> Iterable[Committable]:
        with self._asking(f"a look at the open transactions of {self._options}"):
            names = self._notes().names()
        return [Committable(name, {}) for name in sorted(names) if self.transactional_ids.owns_exact(name)]

    def check(self) -> Iterator[CheckResult]:
        with self._asking(f"a look at {self._options}"):
            table = self._lake.load()
            require_supported(table, self._options)
            yield from examine(table, self._options, self._lake.io())

    def close(self) -> None:
        self._lake.close()

    # Shared by both sides. --------------------------------------------------------------------------------------

    def _mark(self) -> Mark:
        return Mark(self.transactional_ids.scope.rstrip("."))

    def _notes(self) -> Notes:
        return Notes(self._lake.io(), self._lake.table().metadata.location, self.transactional_ids.scope)

    def _not_ours(self, committable: Committable) -> NoReturn:
        raise self.transactional_ids.not_owned(committable.transaction_id)

    def _asking(
        self, what: str, failed: Callable[[Exception, str], TwoPhaseCommitError] = asked_in_vain
    ) -> contextlib.AbstractContextManager[None]:
        """Turn errors of the catalog or the store into the project's own. ``what``: the request, for messages."""
        return mapped(CATALOG_ERRORS, lambda error: failed(self._lake.failed(error), what))


def _files_of_keys(io: DurableFileIO, prepared: Iterable[Prepared]) -> list[str]:
    """Return the files of keys that are no longer needed once the batch is visible, because the rows with those keys
    are deleted by position."""
    found: list[str] = []
    for each in prepared:
        with contextlib.suppress(FileNotFoundError):  # removed before a process ended here
            found += _data_files(io, each.manifest_file(0)) if each.by_position else ()
    return found


def _data_files(io: DurableFileIO, manifest: ManifestFile) -> list[str]:
    """Return the locations of the data files in a manifest. Raises Damaged."""
    return [entry.data_file.file_path for entry in entries(io, manifest)]


def _names(committables: Iterable[Committable]) -> frozenset[str]:
    return frozenset(committable.transaction_id for committable in committables)
