"""Merges small manifests into large ones, so that readers and commits stay fast however long a query runs.

Each batch adds a manifest. After a day of one batch per second, a reader would open 86 400 of them. Iceberg for Java
merges manifests in the commit that adds one. Here a separate commit does so once the batch is visible, so a failed
merge costs nothing and is retried after the next batch.

Manifests are only merged with manifests of the same order of magnitude. So a data file's entry is copied a few times in
its life rather than with every merge.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import DoubleType
from pyiceberg.utils.properties import property_as_bool, property_as_int

from twopc_iceberg.batch_manifests import packed
from twopc_iceberg.layout import Layout
from twopc_iceberg.manifests import ManifestWriter, entries
from twopc_iceberg.outcomes import told
from twopc_iceberg.snapshot import Attempt, moved, new_snapshot, requirements

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from twopc_iceberg.catalogs import Lake
    from twopc_iceberg.files import DurableFileIO
    from twopc_iceberg.manifests import ManifestLists

logger = logging.getLogger(__name__)


def target_bytes(properties: Mapping[str, str]) -> int:
    """Return the maximum size of a manifest in the table."""
    found = property_as_int({**properties}, TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 2**20)
    assert found is not None
    return found


class ManifestMerger:
    """Merges the small manifests of one table. A failure is logged and does not stop the query."""

    def __init__(self, lake: Lake, lists: ManifestLists) -> None:
        self._lake = lake
        self._lists = lists
        self._has_warned = False

    def merge(self, branch: str) -> None:
        """Merge the branch's small manifests once there are as many as the table's properties require."""
        try:
            _merge(self._lake, self._lists, branch)
        except CommitFailedException as error:  # another writer was faster
            logger.debug("manifests are not merged now: %s", told(error))
        except Exception as error:  # noqa: BLE001  # the batch is visible, whatever the error
            log = logger.debug if self._has_warned else logger.warning
            self._has_warned = True
            log("manifests of %s are not merged, and commits become slower with each batch: %s", branch, told(error))


def _merge(lake: Lake, lists: ManifestLists, branch: str) -> None:
    table, io = lake.table(), lake.io()
    metadata = table.metadata
    parent = metadata.snapshot_by_name(branch)
    if parent is None or not property_as_bool(metadata.properties, TableProperties.MANIFEST_MERGE_ENABLED, True):
        return
    found = lists.live(io, parent)
    groups = [
        group for group in mergeable(found, metadata.properties) if _can_rewrite(metadata, group[0].partition_spec_id)
    ]
    if not groups:
        return
    attempt = Attempt.of(table, parent)
    merged = [_merged(table, io, group, attempt) for group in groups]
    replaced = {each.manifest_path for group in groups for each in group}
    kept = [each for each in found if each.manifest_path not in replaced]
    rows = lists.write(io, metadata, attempt, [*merged, *kept])
    snapshot = new_snapshot(metadata, replace(attempt, rows=rows), _summary(parent, merged, kept, replaced))
    try:
        response = table.catalog.commit_table(
            table, requirements(metadata, branch, parent), moved(metadata, snapshot, branch)
        )
    except CommitFailedException:
        if attempt.is_dead(lake.load().metadata):
            io.remove([attempt.manifest_list, *(each.manifest_path for each in merged)])
        raise
    lake.seen(response.metadata, response.metadata_location)


def _can_rewrite(metadata: TableMetadata, spec_id: int) -> bool:
    """Return whether pyiceberg can rewrite manifests of a partition spec without changing them.

    pyiceberg needs the types of the spec's source columns. It also reads doubles as floats, which would change
    partition values, and Spark uses partition values as the records' values.
    """
    spec, schema = metadata.specs().get(spec_id), metadata.schema()
    if spec is None or not all(field.source_id in schema.field_ids for field in spec.fields):
        return False
    return not any(isinstance(each, DoubleType) for each in Layout.of(schema, spec).partition_types())


def mergeable(found: Sequence[ManifestFile], properties: dict[str, str]) -> Iterator[list[ManifestFile]]:
    """Yield groups of manifests, each to be merged into one."""
    target = target_bytes(properties)
    least = property_as_int(properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, 100)
    assert least is not None
    alike: dict[tuple[ManifestContent, int, int], list[ManifestFile]] = defaultdict(list)
    for each in found:
        if each.manifest_length < target:
            alike[each.content, each.partition_spec_id, len(str(each.manifest_length))].append(each)
    for group in alike.values():
        if len(group) >= max(2, least):
            packs = packed(group, target, lambda each: each.manifest_length)
            yield from (pack for pack in packs if len(pack) > 1)


def _merged(table: Table, io: DurableFileIO, group: Sequence[ManifestFile], attempt: Attempt) -> ManifestFile:
    """Write one manifest with the entries of several. Each file keeps its snapshot id and its sequence number."""
    metadata = table.metadata
    location = table.location_provider().new_metadata_location(f"{uuid.uuid4()}-m0.avro")
    with ManifestWriter(
        group[0].content,
        metadata,
        metadata.specs()[group[0].partition_spec_id],
        metadata.schema(),
        io.new_output(location),
        attempt.snapshot_id,
    ) as writer:
        for manifest in group:
            for entry in entries(io, manifest):
                writer.existing(entry)
    return writer.to_manifest_file()


def _summary(
    parent: Snapshot, merged: Sequence[ManifestFile], kept: Sequence[ManifestFile], replaced: set[str]
) -> Summary:
    """Return the snapshot's summary. The totals are copied from the parent, because no file is added or removed."""
    before = parent.summary.additional_properties if parent.summary else {}
    totals = {name: value for name, value in before.items() if name.startswith("total-")}
    counts = {
        "manifests-created": str(len(merged)),
        "manifests-kept": str(len(kept)),
        "manifests-replaced": str(len(replaced)),
    }
    return Summary(operation=Operation.REPLACE, **totals, **counts)
