"""A table as sent to tasks: its metadata without history, and access to its files.

A task never reads the table's metadata file, which later commits may delete. It contacts the catalog only for new
credentials, when the credentials that came with the table are about to expire.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from twopc_iceberg.files import DurableFileIO, io_of
from twopc_iceberg.notes import PREFIX

_TOKEN, _EXPIRES_AT = "s3.session-token", "s3.session-token-expires-at-ms"  # names
SHORTEST_LIFE_S = 900.0
"""How long credentials count as valid if the catalog does not report their expiration: the shortest lifetime that AWS
issues."""
_MARGIN_S = 600.0
"""How long before their expiration credentials count as expired: longer than a task takes to write, plus clock skew."""


@dataclass(frozen=True)
class TableForTasks:
    """A table as sent to tasks.

    Attributes:
        metadata: the table's metadata without snapshots, as JSON.
        io_properties: the properties for access to files. They may contain credentials, so they appear in no
            committable, log or repr.
    """

    metadata: str
    io_properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, table: Table) -> TableForTasks:
        """Return the parts of ``table`` that tasks need."""
        slim = IcebergBaseModel.model_dump_json(_without_history(table.metadata))  # pyiceberg 0.12 refuses version 3
        return cls(slim, io_of(table.io.properties).properties)

    @cached_property
    def parsed(self) -> TableMetadata:
        return TableMetadataUtil.parse_raw(self.metadata)

    @property
    def schema(self) -> Schema:
        return self.parsed.schema()

    @property
    def spec(self) -> PartitionSpec:
        return self.parsed.spec()

    @cached_property
    def file_schema(self) -> Schema:
        """The schema of data files: the table's, with column names that every reader accepts. Required fields of
        structs are optional here, because Arrow's Parquet writer rejects a null struct with a required field."""
        fields = (
            each.model_copy(update={"field_type": _optional_within(each.field_type)}) for each in self.schema.fields
        )
        return sanitize_column_names(Schema(*fields))

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of data files for pyarrow, with the field ids by which readers find columns."""
        return schema_to_pyarrow(self.file_schema)

    @property
    def locations(self) -> LocationProvider:
        return load_location_provider(self.parsed.location, self.parsed.properties)

    def io(self) -> DurableFileIO:
        return io_of(self.io_properties)

    def __getstate__(self) -> dict[str, object]:
        return {"metadata": self.metadata, "io_properties": self.io_properties}


def _optional_within(kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            parts = ({"required": False, "field_type": _optional_within(each.field_type)} for each in kind.fields)
            return StructType(*[each.model_copy(update=part) for each, part in zip(kind.fields, parts, strict=True)])
        case ListType():
            return ListType(kind.element_id, _optional_within(kind.element_type), kind.element_required)
        case MapType():
            value = _optional_within(kind.value_type)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)
    return kind


def are_given_out(io_properties: Mapping[str, Any]) -> bool:
    """Return whether the credentials are temporary."""
    return _TOKEN in io_properties


def are_expiring(io_properties: Mapping[str, str]) -> bool:
    """Return whether the credentials that came with a table are about to expire."""
    expires_at_ms = io_properties.get(_EXPIRES_AT, "")
    return expires_at_ms.isdecimal() and int(expires_at_ms) / 1000 < time.time() + _MARGIN_S


def assume_end(io_properties: dict[str, str]) -> None:
    """Set an expiration for temporary credentials that the catalog returned without one."""
    if _TOKEN in io_properties and _EXPIRES_AT not in io_properties:
        io_properties[_EXPIRES_AT] = f"{(time.time() + SHORTEST_LIFE_S) * 1000:.0f}"


def avro_compression(properties: Mapping[str, str]) -> Any:
    """Return the codec of a table's manifests and manifest lists."""
    return properties.get(TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)


def _without_history(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata without the parts that only commits and readers need."""
    return metadata.model_copy(
        update={
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
            "partition_statistics": [],
            "schemas": [metadata.schema()],
            "sort_orders": [metadata.sort_order()],
            "properties": {n: v for n, v in metadata.properties.items() if not n.startswith(PREFIX)},
        }
    )
