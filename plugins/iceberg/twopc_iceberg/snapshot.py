"""Commits a batch atomically: one snapshot with all of its files, together with the query's mark.

Two processes may commit a batch at the same time, requests may be lost or late, responses may be lost, and other
writers append, rewrite and expire meanwhile. These rules make the batch visible exactly once:

1. One ``commit_table`` adds the snapshot and sets the mark.
2. It requires that the branch still points to the snapshot at which the mark was checked. Anything that has made the
   batch visible since has moved the branch, so the catalog refuses. pyiceberg's own retry is not used: it would repeat
   the request with a new requirement, without checking the mark.
3. A branch that was rolled back by hand points to its old snapshot again. The catalog still refuses, because the
   sequence number is taken. Sequence numbers never go back.
4. An error of ``commit_table`` is not trusted. The table is reloaded, and its mark counts.
5. The mark must not be older than it was before the decision. An older mark was changed by hand, and only an operator
   can find out whether the batch is visible.
6. The files of a failed attempt are removed once another snapshot is seen with its sequence number. Until then the
   attempt may still arrive, and is proposed again unchanged if the branch has not moved. If the snapshot with that
   number has expired, it may have been the attempt's own, and later snapshots may include its files.
7. Catalogs do not check the sequence number of a snapshot without a parent. So a branch without snapshots, as in a new
   or replaced table, first gets an empty one. If that arrives late, it adds no record.
8. Each attempt checks that the table can read the files of the batch. The request requires that neither the current
   schema nor the default partition spec has changed since.

A request for several tables (``joint.py``) has the same requirements and updates per table, and its attempts are
remembered here like any other. So the rules hold for each of its tables, even if the catalog changes only some of them.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from twopc.errors import OperatorRequired, OutcomeUnknown, Retriable, TransactionLost
from twopc_iceberg.batch_manifests import FileChanged
from twopc_iceberg.catalogs import Lake
from twopc_iceberg.delete_files import NO_CHANGES, Changes
from twopc_iceberg.manifests import ManifestLists, NewSnapshot
from twopc_iceberg.notes import BATCH, SCOPE, Mark
from twopc_iceberg.outcomes import CATALOG_ERRORS, CatalogAnswer, Damaged, answer, commit_failed, is_denial, told
from twopc_iceberg.positions import Keys, Positions
from twopc_iceberg.prepared import Prepared
from twopc_iceberg.support import obstacle

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ATTEMPTS = 20
"""How many races in a row a commit may lose to other writers before it raises Retriable."""

_PAUSE_S = 0.02
"""The maximum pause after one lost race. After n lost races in a row, it is n times as long."""


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """A batch to make visible.

    Attributes:
        mark: the query's mark.
        mark_before: the mark's value before the decision.
        batch_id: the batch's id.
        branch: the branch to append to.
        table: the UUID of the table that the batch was written for.
        prepared: the manifests of all transactions.
        what: the name of the batch in errors.
    """

    mark: Mark
    mark_before: int | None
    batch_id: int
    branch: str
    table: str
    prepared: Sequence[Prepared]
    what: str

    @property
    def added(self) -> list[Prepared]:
        """The manifests that the snapshot adds, without the manifests of keys that the commit only searches for."""
        return [each for each in self.prepared if not each.by_position]


@dataclass(frozen=True, slots=True)
class Added:
    """The part of a batch that is the same in every attempt.

    Attributes:
        manifests: the manifests that its snapshot adds.
        keys: the keys of the rows that each attempt searches for.
    """

    manifests: Sequence[Prepared]
    keys: Keys | None = None


NOTHING = Added(())


@dataclass(frozen=True, slots=True)
class Attempt(NewSnapshot):
    """A snapshot proposed to the catalog.

    Attributes:
        batch: the batch in it; None for a snapshot that adds no record.
        changes: the rows of older files that it deletes, and the files written for that.
        rows: the number of rows to which it assigns ids.
    """

    batch: DecidedBatch | None
    changes: Changes = NO_CHANGES
    rows: int = 0

    @classmethod
    def of(cls, table: Table, parent: Snapshot | None, batch: DecidedBatch | None = None) -> Attempt:
        """Return the table's next snapshot. Sends nothing."""
        metadata = table.metadata
        snapshot_id = metadata.new_snapshot_id()
        name = f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro"
        return cls(
            snapshot_id=snapshot_id,
            sequence_number=metadata.next_sequence_number(),
            manifest_list=table.location_provider().new_metadata_location(name),
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            first_row_id=(metadata.next_row_id or 0) if isinstance(metadata, TableMetadataV3) else None,
            batch=batch,
        )

    @property
    def files(self) -> list[str]:
        """The files that belong to this attempt alone."""
        return [self.manifest_list, *self.changes.written]

    def is_like(self, other: Attempt) -> bool:
        """Return whether the other attempt would have the same manifest list."""
        mine, its = (
            (each.sequence_number, each.parent_snapshot_id, each.first_row_id, each.batch) for each in (self, other)
        )
        return mine == its

    def is_taken(self, metadata: TableMetadata) -> bool:
        """Return whether the attempt's sequence number is taken, by its own or another snapshot.

        ``metadata`` may be older than the catalog's. True is right even then, because sequence numbers only grow; False
        may be outdated.
        """
        assert not isinstance(metadata, TableMetadataV1)  # has no sequence numbers; the sink refuses it
        return metadata.last_sequence_number >= self.sequence_number

    def is_dead(self, metadata: TableMetadata) -> bool:
        """Return whether the attempt has not landed and can no longer land, because another snapshot has its sequence
        number.

        If no snapshot has that number, the attempt may have landed and expired, and later snapshots may include its
        delete files. An attempt without a parent can always land, because catalogs do not check its sequence number.
        """
        others = {each.sequence_number for each in metadata.snapshots if each.snapshot_id != self.snapshot_id}
        return self.parent_snapshot_id is not None and self.sequence_number in others

    def has_landed(self, metadata: TableMetadata) -> bool:
        """Return whether the table has the attempt's snapshot."""
        return metadata.snapshot_by_id(self.snapshot_id) is not None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change to request from the catalog.

    Attributes:
        table: the table as it was when the mark was checked.
        attempt: the snapshot to add.
        requirements: the conditions that must hold in the catalog.
        updates: the changes.
    """

    table: Table
    attempt: Attempt
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @property
    def request(self) -> CommitTableRequest:
        *namespace, name = self.table.name()
        identifier = TableIdentifier(namespace=Namespace(root=namespace), name=name)
        return CommitTableRequest(identifier=identifier, requirements=self.requirements, updates=self.updates)


class BatchCommitter:
    """Commits batches to one table, and removes the files of attempts that failed."""

    def __init__(self, lake: Lake, lists: ManifestLists, positions: Positions) -> None:
        self._lake = lake
        self._lists = lists
        self._positions = positions
        self._attempts: list[Attempt] = []

    def commit(self, batch: DecidedBatch, manifests: Callable[[], Added]) -> None:
        """Make ``batch`` visible, unless it already is.

        Args:
            batch: the batch.
            manifests: writes the manifests of the batch, and returns them. Called before the first attempt. Raises
                FileChanged for a missing file, without which the snapshot could not be read.

        Raises:
            Retriable: the catalog did not respond, or other writers were faster each time.
            TransactionLost: a file is gone.
            OutcomeUnknown: the table was replaced, or its mark was changed; or a file is gone, and an attempt of this
                process may still land.
            OperatorRequired: the catalog refuses, the branch is gone, or the table can no longer read the files.
        """
        table = self._asked(self._lake.table, batch)
        added: Added | None = None
        for number in range(ATTEMPTS):
            if is_visible(table.metadata, batch):
                return self._end(table, batch)
            if added is None:
                try:
                    added = self._asked(manifests, batch)
                except FileChanged as changed:
                    return self._lost(batch, changed.location)
            failure = self._try(table, batch, added)
            if failure is None:
                table = self._asked(self._lake.table, batch)
                continue
            logger.debug("%s: %s", batch.what, told(failure))
            before, table = table, self._asked(self._lake.load, batch)
            if is_visible(table.metadata, batch):
                return self._end(table, batch)
            if table.metadata_location == before.metadata_location or is_denial(failure):
                raise self._unchanged(failure, batch)
            self.clean_up(table)
            pause(number)
        raise Retriable(f"{batch.what}: other writers were faster {ATTEMPTS} times in a row")

    def proposal(self, batch: DecidedBatch, manifests: Callable[[], Added]) -> Proposal | None:
        """Return this table's part of a request for several tables; None if the batch is visible.

        Does not send that request. If the branch has no snapshot, adds an empty one in a separate request. Callers must
        call ``commit`` afterwards. Raises FileChanged and the errors of ``commit``.
        """
        table = self._asked(self._lake.table, batch)
        if is_visible(table.metadata, batch):
            return None
        if head(table.metadata, batch.branch, batch.what) is None:
            if (failure := self._try(table, batch, NOTHING)) is not None:
                raise commit_failed(self._lake.failed(failure), batch.what) from failure
            table = self._lake.table()
        added = self._asked(manifests, batch)
        return self._asked(lambda: self._propose(table, batch, added), batch)

    def _end(self, table: Table, batch: DecidedBatch) -> None:
        """Forget the attempts of a visible batch.

        Raises:
            OperatorRequired: an attempt of this process has landed, and the table can no longer be read.
        """
        landed = [each for each in self._attempts if each.batch == batch and each.has_landed(table.metadata)]
        if landed and (lost := {each.spec for each in batch.added} - table.metadata.specs().keys()):
            raise _spec_was_removed(batch, min(lost), " as it was committed, and the table can't be read")
        self.clean_up(table)

    def _lost(self, batch: DecidedBatch, gone: str) -> None:
        """Raise the error for a missing file of a decided batch, unless the reloaded table shows the batch as visible.
        Another process may have committed the batch, and a compaction may have removed its files."""
        table = self._asked(self._lake.load, batch)
        if is_visible(table.metadata, batch):
            return self._end(table, batch)
        says = f"{batch.what}, and file {gone} is gone or cut short."
        if any(each.batch == batch and not each.is_dead(table.metadata) for each in self._attempts):
            raise OutcomeUnknown(
                f"{says} A request to commit it is still on its way, or was lost. Start again: if the table has"
                f" {batch.mark.property!r}={batch.batch_id} then, the snapshot of the batch can't be read."
            )
        raise TransactionLost(
            f"{says} Has a job removed files that belong to no snapshot? Restore the file and start again, or write the"
            " batch's records again by other means and give its transactions up with 'twopc abandon'."
        )

    def _asked(self, call: Callable[[], ResultT], batch: DecidedBatch) -> ResultT:
        try:
            return call()
        except CATALOG_ERRORS as error:
            raise commit_failed(self._lake.failed(error), batch.what) from error

    def _unchanged(self, failure: Exception, batch: DecidedBatch) -> Exception:
        """Return the error for a failed attempt after which the table is unchanged. The attempt may still land."""
        if answer(failure) is CatalogAnswer.CONFLICT:
            return Retriable(f"{batch.what}: the catalog reports a conflict and shows no change: {told(failure)}")
        return commit_failed(self._lake.failed(failure), batch.what)

    def _try(self, table: Table, batch: DecidedBatch, added: Added) -> Exception | None:
        """Propose the batch's snapshot once, or an empty one if the branch has no snapshot. Return the error, if any.
        The snapshot may have landed in spite of the error."""
        try:
            proposal = self._propose(table, batch, added)
        except Damaged as damaged:  # another writer may just have replaced that file of the table
            return damaged
        except CATALOG_ERRORS as error:
            raise commit_failed(self._lake.failed(error), batch.what) from error
        try:
            response = table.catalog.commit_table(table, proposal.requirements, proposal.updates)
        except CATALOG_ERRORS as error:
            return error
        self._lake.seen(response.metadata, response.metadata_location)
        if not proposal.attempt.has_landed(response.metadata):
            return Retriable("the catalog reports success, and shows a table without the snapshot")
        return None

    def _propose(self, table: Table, batch: DecidedBatch, added: Added) -> Proposal:
        """Return the change to request from the catalog.

        Raises:
            OperatorRequired: the branch is gone, or the table can no longer read the batch's files.
        """
        metadata, io = table.metadata, self._lake.io()
        parent = head(metadata, batch.branch, batch.what)
        if lost := {each.spec for each in batch.added} - metadata.specs().keys():
            raise _spec_was_removed(batch, min(lost), "")
        if why := obstacle(table, batch.prepared, io):
            raise OperatorRequired(
                f"{batch.what}, and the table {why}. Undo that change of the table and start again. Otherwise write the"
                " batch's records by other means, and give its transactions up with 'twopc abandon"
                " --even-if-repairable'."
            )
        attempt = self._attempt(table, parent, batch, added)
        if parent is None:
            snapshot = new_snapshot(metadata, attempt, update_snapshot_summaries(Summary(operation=Operation.APPEND)))
            updates = moved(metadata, snapshot, batch.branch)
        else:
            snapshot = new_snapshot(metadata, attempt, _summary(batch, attempt.changes, parent))
            updates = (
                *_guards(metadata, batch),
                *moved(metadata, snapshot, batch.branch),
                SetPropertiesUpdate(updates={batch.mark.property: str(batch.batch_id)}),
            )
        return Proposal(table, attempt, requirements(metadata, batch.branch, parent), updates)

    def _attempt(self, table: Table, parent: Snapshot | None, batch: DecidedBatch, added: Added) -> Attempt:
        """Return the next attempt. Reuse an equal attempt that may still land; otherwise write a manifest list."""
        new, io = Attempt.of(table, parent, None if parent is None else batch), self._lake.io()
        known = next((each for each in self._attempts if each.is_like(new)), None)
        # A cleanup job may have removed the manifest list of an attempt that was proposed days ago.
        if known is not None and io.new_input(known.manifest_list).exists():
            return known
        attempt = known or new
        if parent is not None and added.keys:
            before = self._lists.live(io, parent)
            changes = self._positions.changes(table, io, attempt.snapshot_id, before, added.keys)
            attempt = replace(attempt, changes=changes)
        files = [] if parent is None else [each.manifest_file(attempt.snapshot_id) for each in added.manifests]
        files += attempt.changes.manifests
        rows = self._lists.write(io, table.metadata, attempt, files, parent, attempt.changes.replaced)
        attempt = replace(attempt, rows=rows)
        self._attempts = [*(each for each in self._attempts if each is not known), attempt]
        return attempt

    def clean_up(self, table: Table) -> None:
        """Forget attempts whose sequence number is taken, and remove the files of attempts that can no longer land. A
        failed removal only wastes space."""
        ended = [attempt for attempt in self._attempts if attempt.is_taken(table.metadata)]
        self._attempts = [attempt for attempt in self._attempts if attempt not in ended]
        try:
            dead = (each for each in ended if each.is_dead(table.metadata))
            self._lake.io().remove([file for each in dead for file in each.files])
        except CATALOG_ERRORS as error:
            logger.debug("could not remove files of failed attempts: %s", told(error))


def pause(number: int) -> None:
    """Wait after a lost race, longer after each further one."""
    time.sleep(random.uniform(0, _PAUSE_S * (number + 1)))  # noqa: S311  # no secret


def _spec_was_removed(batch: DecidedBatch, spec: int, how: str) -> OperatorRequired:
    return OperatorRequired(
        f"{batch.what}: its partition spec {spec} was removed from the table{how}. Bring an older version of its"
        " metadata back and start again, or give the transactions up with 'twopc abandon --even-if-repairable'."
    )


def _guards(metadata: TableMetadata, batch: DecidedBatch) -> Iterator[TableUpdate]:
    """Yield updates that change nothing, but make a catalog refuse the request if an older spec of the batch is gone.
    Iceberg has no requirement for this case, and not every catalog checks such updates."""
    current = metadata.default_spec_id
    for spec in sorted({each.spec for each in batch.added} - {current}):
        yield SetDefaultSpecUpdate.model_validate({"spec-id": spec})
        yield SetDefaultSpecUpdate.model_validate({"spec-id": current})


def is_visible(metadata: TableMetadata, batch: DecidedBatch) -> bool:
    """Return whether the batch is or was visible in the table. Its snapshot may have been rolled back by hand, expired
    or rewritten since then.

    Raises:
        OutcomeUnknown: the table was replaced, or its mark was set back by hand.
        OperatorRequired: the table's mark is not a number.
    """
    if str(metadata.table_uuid) != batch.table:
        raise OutcomeUnknown(
            f"{batch.what}, and another table has its name now: UUID {metadata.table_uuid}, not {batch.table}. The"
            " table was dropped, or replaced by one of the same name. If its records matter, bring it back under this"
            " name and start again. If they don't, give the transactions up with 'twopc abandon'."
        )
    found = batch.mark.found(metadata)
    if found is not None and found >= batch.batch_id:
        return True
    if batch.mark.snapshot(metadata, batch.batch_id) is not None:
        return True
    if batch.mark_before is not None and (found is None or found < batch.mark_before):
        raise OutcomeUnknown(
            f"{batch.what}. Before the decision the table's property {batch.mark.property!r} was {batch.mark_before},"
            f" and now it is {metadata.properties.get(batch.mark.property)!r}: it was changed by hand, or the table was"
            " restored from a copy. See whether the batch's records are in the table. If they are, set the property to"
            f" {batch.batch_id}; if not, to {batch.mark_before}. Then start again."
        )
    return False


def head(metadata: TableMetadata, branch: str, what: str) -> Snapshot | None:
    """Return the newest snapshot of the branch; None for the main branch of a table without snapshots.

    Raises:
        OperatorRequired: there is no such branch.
    """
    ref = metadata.refs.get(branch)
    if ref is None and branch == MAIN_BRANCH:
        return None
    if ref is None or ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise OperatorRequired(f"{what}: the table has no branch {branch!r}. Create it again, and start again.")
    return metadata.snapshot_by_id(ref.snapshot_id)


def new_snapshot(metadata: TableMetadata, attempt: Attempt, summary: Summary) -> Snapshot:
    """Return the snapshot of an attempt.

    Its timestamp is never before the table's last change, even if this machine's clock is slow: Iceberg for Java can't
    read a table whose timestamps go back by more than a minute.
    """
    newest = (entry.timestamp_ms for entry in metadata.snapshot_log[-1:])
    return Snapshot(  # type: ignore[call-arg]  # pydantic's aliases
        snapshot_id=attempt.snapshot_id,
        parent_snapshot_id=attempt.parent_snapshot_id,
        sequence_number=attempt.sequence_number,
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms, *newest),
        manifest_list=attempt.manifest_list,
        summary=summary,
        schema_id=metadata.current_schema_id,
        first_row_id=attempt.first_row_id,
        added_rows=None if attempt.first_row_id is None else attempt.rows,
    )


def moved(metadata: TableMetadata, snapshot: Snapshot, branch: str) -> tuple[TableUpdate, ...]:
    """Return the updates that add a snapshot and move the branch to it. The branch keeps its retention settings."""
    ref = metadata.refs.get(branch)
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(  # type: ignore[call-arg]
            snapshot_id=snapshot.snapshot_id,
            ref_name=branch,
            type=SnapshotRefType.BRANCH,
            max_ref_age_ms=ref.max_ref_age_ms if ref else None,
            max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
            min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
        ),
    )


def requirements(metadata: TableMetadata, branch: str, parent: Snapshot | None) -> tuple[TableRequirement, ...]:
    """Return the requirements of a commit: the table is the same, the branch has not moved, and neither the current
    schema nor the default partition spec has changed."""
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=branch, snapshot_id=parent.snapshot_id if parent else None),  # type: ignore[call-arg]
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )


def _summary(batch: DecidedBatch, changes: Changes, parent: Snapshot | None) -> Summary:
    def total(parts: Sequence[Prepared], of: Callable[[Prepared], int]) -> str:
        return str(sum(map(of, parts)))

    data = [each for each in batch.added if each.equality_ids is None]
    deletes = [each for each in batch.added if each.equality_ids is not None]
    added = {
        "added-data-files": total(data, lambda each: each.files),
        "added-records": total(data, lambda each: each.rows),
        "added-files-size": str(sum(each.bytes for each in batch.added) + changes.bytes),
        SCOPE: batch.mark.scope,
        BATCH: str(batch.batch_id),
        **changes.summary,
    }
    operation = Operation.APPEND
    if deletes or changes.summary:
        operation = Operation.OVERWRITE if data else Operation.DELETE
    if deletes:
        files, keys = total(deletes, lambda each: each.files), total(deletes, lambda each: each.rows)
        added |= {"added-delete-files": files, "added-equality-delete-files": files, "added-equality-deletes": keys}
    before = parent.summary if parent is not None else None
    return update_snapshot_summaries(Summary(operation=operation, **added), before)
