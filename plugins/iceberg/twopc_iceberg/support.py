"""Checks that the sink supports the features of a table and its catalog, before anything is written."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetPropertiesUpdate

from twopc.errors import ConfigurationError
from twopc_iceberg.files import SUPPORTED, DurableFileIO
from twopc_iceberg.kept_metadata import ProbedCatalog
from twopc_iceberg.keys import require_key
from twopc_iceberg.layout import Layout
from twopc_iceberg.options import IcebergOptions
from twopc_iceberg.partitions import check_spec
from twopc_iceberg.prepared import Prepared

FORMAT_VERSIONS = (2, 3)

_ENCRYPTION = "encryption.key-id"
_PROBE = "twopc.probe"
_NO_SNAPSHOT = 1
"""An id that no snapshot has: Iceberg's ids are random 63-bit numbers."""


def require_supported(table: Table, options: IcebergOptions) -> None:
    """Check that the sink can write this table.

    Raises:
        ConfigurationError: the sink does not support a feature of the table. The error names the feature.
    """
    what, metadata = str(options), table.metadata
    if metadata.format_version not in FORMAT_VERSIONS:
        raise ConfigurationError(
            f"{what} has the format version {metadata.format_version}. Its manifests have no sequence numbers, by which"
            " the sink tells an old request from a new one. Upgrade it: ALTER TABLE … SET TBLPROPERTIES"
            " ('format-version' = '2')."
        )
    file_format = metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
    if file_format.lower() != "parquet":
        raise ConfigurationError(
            f"{what} has write.format.default={file_format}, and the sink writes Parquet alone. Set it to parquet."
        )
    if _ENCRYPTION in metadata.properties:
        raise ConfigurationError(f"{what} is encrypted ({_ENCRYPTION}), and pyiceberg can't write encrypted files.")
    if not metadata.sort_order().is_unsorted:
        raise ConfigurationError(
            f"{what} has a sort order, which the sink does not keep yet. ALTER TABLE … WRITE UNORDERED, and sort as"
            " files are rewritten."
        )
    check_spec(metadata.spec(), metadata.schema(), what)
    require_key(metadata.schema(), options.upsert_by, what)
    provider = table.location_provider()
    if foreign := _foreign_scheme([provider.data_path, provider.metadata_path, metadata.location]):
        raise ConfigurationError(
            f"{what} has files at {foreign}://, and the sink is tested with {', '.join(SUPPORTED)} alone."
        )
    _require_branch(metadata, options)


def _require_branch(metadata: TableMetadata, options: IcebergOptions) -> None:
    ref = metadata.refs.get(options.branch)
    if ref is None and options.branch != MAIN_BRANCH:
        raise ConfigurationError(f"{options} does not exist. Create the branch: ALTER TABLE … CREATE BRANCH.")
    if ref is not None and ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise ConfigurationError(f"{options}: {options.branch!r} is a tag, which can't be appended to.")


def require_honest(table: Table, options: IcebergOptions) -> None:
    """Check that the catalog refuses a commit whose requirement does not hold, and that the sink is allowed to commit.

    Upholds: a repeated batch is visible once. With a catalog that ignores requirements, it would be visible twice.

    Raises:
        ConfigurationError: the catalog made the change, or does not support this table.
        Exception: the catalog denied the request, or did not respond.
    """
    try:
        if isinstance(table.catalog, ProbedCatalog):
            table.catalog.probe(table)
            did = "accepted a commit that another one excludes"
        else:
            table.catalog.commit_table(
                table,
                (
                    AssertTableUUID(uuid=table.metadata.table_uuid),
                    AssertRefSnapshotId(ref=options.branch, snapshot_id=_NO_SNAPSHOT),  # type: ignore[call-arg]
                ),
                (SetPropertiesUpdate(updates={_PROBE: str(uuid.uuid4())}),),
            )
            did = (
                "made a change whose requirement (assert-ref-snapshot-id) did not hold, as it set the table's property"
                f" {_PROBE!r}"
            )
    except CommitFailedException:
        return
    raise ConfigurationError(f"{options}: the catalog has {did}. With such a catalog no batch is written exactly once.")


def obstacle(table: Table, prepared: Sequence[Prepared], io: DurableFileIO) -> str | None:  # noqa: PLR0911
    """Return why the table can no longer accept files that were written for it; None if it can. Errors of the store
    pass through.

    Reads from the store only if the table's columns or partition specs have changed since the files were written.
    """
    metadata, specs = table.metadata, table.metadata.specs()
    if metadata.format_version not in FORMAT_VERSIONS:
        return f"has the format version {metadata.format_version}"
    if _ENCRYPTION in metadata.properties:
        return f"is encrypted ({_ENCRYPTION})"
    if foreign := _foreign_scheme([table.location_provider().metadata_path, metadata.location]):
        return f"has files at {foreign}://"
    for each in {(each.content, each.spec, each.layout): each for each in prepared}.values():
        # Iceberg for Java can't read a table that has equality deletes by a dropped column.
        if {*(each.equality_ids or ())} - {field.field_id for field in metadata.schema().fields}:
            return "has lost a column by which records replace others"
        if each.by_position:
            continue
        if each.spec not in specs:
            return f"has lost its partition spec {each.spec}"
        layout = Layout.of(metadata.schema(), specs[each.spec])
        if layout.fingerprint != each.layout and (why := each.written(io).unreadable_by(layout)):
            return f"can't read the files: {why}"
    return None


def _foreign_scheme(locations: Iterable[str]) -> str | None:
    """Return the first scheme of the locations that the sink is not tested with; None if there is none."""
    schemes = (PyArrowFileIO.parse_location(location)[0] for location in locations)
    return next((scheme for scheme in schemes if scheme not in SUPPORTED), None)
