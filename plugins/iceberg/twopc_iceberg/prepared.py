"""A task's manifests as stored in its committable: their locations, and their descriptions for a manifest list."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import UNASSIGNED_SEQ, ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.types import IcebergType

from twopc.transaction import Committable, JsonValue
from twopc_iceberg.files import DurableFileIO
from twopc_iceberg.layout import Layout

_TEXTS = ("table", "manifest", "layout")
_SEVERAL = "manifests"
_IF_ANY = ("equality_ids", "by_position")

MOST_SUMMARY_CHARACTERS = 1000
"""The maximum length of partition summaries. Longer summaries are omitted, because the commit log stores every
committable. Readers then open the manifest."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A manifest of one transaction, and the table for which it was written.

    Attributes:
        table: the table's UUID.
        manifest: the manifest's location.
        length: its length in bytes.
        spec: the id of the partition spec of its files.
        layout: the fingerprint of its files' columns and partition spec.
        files: the number of its files.
        rows: the number of records in them.
        bytes: their total size.
        partitions: for each partition field, whether its values include null and NaN, and their bounds; None if
            omitted.
        digest: the digest of the bytes that the task wrote; None in a log of an older release.
        equality_ids: for files of keys, the ids of the key's columns; None for data files.
        by_position: whether the commit searches for the rows of these keys. Otherwise the files are equality deletes.
    """

    table: str
    manifest: str
    length: int
    spec: int
    layout: str
    files: int
    rows: int
    bytes: int
    partitions: list[JsonValue] | None
    digest: str | None = None
    equality_ids: list[int] | None = None
    by_position: bool | None = None

    @classmethod
    def of(
        cls,
        table: str,
        layout: str,
        manifest: ManifestFile,
        bytes: int,
        digest: str,
        equality_ids: list[int] | None = None,
        by_position: bool | None = None,
    ) -> Prepared:
        summary: list[JsonValue] = [_summary(field) for field in manifest.partitions or []]
        is_short = len(json.dumps(summary)) <= MOST_SUMMARY_CHARACTERS
        return cls(
            table=table,
            manifest=manifest.manifest_path,
            length=manifest.manifest_length,
            spec=manifest.partition_spec_id,
            layout=layout,
            files=manifest.added_files_count or 0,
            rows=manifest.added_rows_count or 0,
            bytes=bytes,
            partitions=summary if is_short else None,
            digest=digest,
            equality_ids=equality_ids,
            by_position=by_position,
        )

    def to_json(self) -> dict[str, JsonValue]:
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _IF_ANY}

    @classmethod
    def from_json(cls, handle: Mapping[str, Any]) -> Prepared:
        """Parse ``to_json`` output. Raises KeyError or TypeError for any other value."""
        # Logs of older releases lack fields with defaults.
        found: dict[str, Any] = {
            each.name: handle[each.name] if each.default is MISSING else handle.get(each.name) for each in fields(cls)
        }
        kinds: dict[str, Any] = {**dict.fromkeys(_TEXTS, str), "partitions": list | None, "digest": str | None}
        kinds |= {"equality_ids": list | None, "by_position": bool | None}
        if not all(isinstance(found[name], kind) for name, kind in kinds.items()):
            raise TypeError("a committable of the iceberg sink has another handle")
        if not all(type(found[name]) is int for name in found.keys() - kinds.keys()):
            raise TypeError("a committable of the iceberg sink has other numbers")
        return cls(**found)

    @property
    def content(self) -> ManifestContent:
        return ManifestContent.DATA if self.equality_ids is None else ManifestContent.DELETES

    def written(self, io: DurableFileIO) -> Layout:
        """Read the columns and the partition spec of the files from the manifest, because the table's schema and spec
        ids may stand for others by now. Errors of the store pass through."""
        file: AvroFile[Any] = AvroFile(io.new_input(self.manifest))
        with file:
            meta = file.header.meta
        return Layout.from_manifest(meta["schema"], self.spec, meta["partition-spec"])

    def manifest_file(self, snapshot_id: int) -> ManifestFile:
        """Return the manifest as an entry in the manifest list of a new snapshot. The entries of the manifest inherit
        their values from it."""
        return ManifestFile.from_args(
            manifest_path=self.manifest,
            manifest_length=self.length,
            partition_spec_id=self.spec,
            content=self.content,
            sequence_number=UNASSIGNED_SEQ,
            min_sequence_number=UNASSIGNED_SEQ,
            added_snapshot_id=snapshot_id,
            added_files_count=self.files,
            existing_files_count=0,
            deleted_files_count=0,
            added_rows_count=self.rows,
            existing_rows_count=0,
            deleted_rows_count=0,
            partitions=None if self.partitions is None else [_field(each) for each in self.partitions],
            key_metadata=None,
        )


def to_handle(prepared: Sequence[Prepared]) -> Mapping[str, JsonValue]:
    """Return the manifests of a transaction as the handle of its committable. Without deletes there is only one."""
    if len(prepared) == 1 and prepared[0].equality_ids is None:
        return prepared[0].to_json()
    return {_SEVERAL: [each.to_json() for each in prepared]}


def of_committable(committable: Committable) -> list[Prepared]:
    """Parse ``to_handle`` output. Raises KeyError or TypeError for any other value."""
    handle: Mapping[str, Any] = committable.handle
    return [Prepared.from_json(each) for each in handle.get(_SEVERAL, [handle])]


def joined_partitions(
    summaries: Sequence[list[JsonValue] | None], types: Sequence[IcebergType]
) -> list[JsonValue] | None:
    """Merge partition summaries; None if one of them was omitted."""
    known = [summary for summary in summaries if summary is not None]
    if len(known) < len(summaries):
        return None
    return [_joined(of_type, fields) for of_type, *fields in zip(types, *known, strict=True)]


def _joined(of_type: IcebergType, fields: Sequence[Any]) -> JsonValue:
    has_null, has_nan, lower, upper = zip(*fields, strict=True)

    def value(bound: str) -> Any:
        return from_bytes(of_type, base64.b64decode(bound))  # type: ignore[arg-type]  # a primitive one

    return [
        any(has_null),
        any(has_nan),
        min((bound for bound in lower if bound is not None), key=value, default=None),
        max((bound for bound in upper if bound is not None), key=value, default=None),
    ]


def digest_of(content: bytes) -> str:
    """Return a digest that shows whether a manifest is still as its task wrote it."""
    return hashlib.sha256(content).hexdigest()[:16]


def _summary(field: PartitionFieldSummary) -> JsonValue:
    return [field.contains_null, field.contains_nan, _text(field.lower_bound), _text(field.upper_bound)]


def _field(summary: Any) -> PartitionFieldSummary:
    has_null, has_nan, lower, upper = summary
    return PartitionFieldSummary.from_args(
        contains_null=has_null, contains_nan=has_nan, lower_bound=_bytes(lower), upper_bound=_bytes(upper)
    )


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else base64.b64encode(bound).decode()


def _bytes(bound: str | None) -> bytes | None:
    return None if bound is None else base64.b64decode(bound)
