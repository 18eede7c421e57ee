"""A table at one version of its log, as an immutable value: made on the coordinator, and sent to tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import types

from twopc.errors import ConfigurationError

CHECKPOINT_PROTECTION = "checkpointProtection"
"""A feature that requires further checks before a writer removes entries of the log. The sink does not make these
checks, so it keeps the entries."""

WRITER_FEATURES = frozenset(
    {
        "allowColumnDefaults",  # as long as no column has one
        "appendOnly",
        "changeDataFeed",  # appends need no change files; changes of rows are refused
        "checkConstraints",  # as long as there is none
        CHECKPOINT_PROTECTION,
        "columnMapping",  # as long as its mode is none
        "deletionVectors",
        "domainMetadata",  # an append has none, and checkpoints keep it
        "generatedColumns",  # as long as there is none
        "invariants",  # as long as there is none; NOT NULL is checked
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",  # concerns only VACUUM
        "variantType",  # as long as there is no such column
        "variantType-preview",
    }
)
READER_FEATURES = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
        *("variantType", "variantType-preview"),
    }
)
"""Table features that let every reader read this sink's appends correctly. delta-rs also commits to tables with some
other features."""

_DROPPABLE = frozenset({"inCommitTimestamp", "rowTracking", "typeWidening"})
"""Unsupported features that Delta 4.4 for Spark can remove from a table. It can't remove any of the others."""

_COPY = "Only a copy of the table lacks it: CREATE TABLE … USING delta AS SELECT"

_BY_FEATURES = (3, 7)
"""The newest reader and writer versions. With them, a table lists its features by name."""
_IDENTITY_COLUMNS = 6
"""The writer version that implies identity columns, which delta-rs can't write."""

_OF_COLUMNS = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
}
"""A key in a column's metadata → the table feature that it uses."""

_BOUNDED_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
_VARCHAR = re.compile(r"varchar\(([0-9]+)\)")
_CHAR = re.compile(r"char\([0-9]+\)")

_TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)

RETENTION_OF_MARKS = "delta.setTransactionRetentionDuration"
"""The table property that makes a table forget marks."""

_INTERVAL = re.compile(r"(?:interval\s+)?([0-9]+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}


@dataclass(frozen=True)
class TableView:
    """A table at one version.

    Attributes:
        id: the table's id; dropping and creating the table again changes the id.
        version: the version of the log.
        schema: its columns, with Arrow's types.
        fields: the columns as JSON objects from the log.
        partition_by: the columns whose values are in the log and not in the files.
        configuration: the table's properties.
        reader_version: the lowest reader version that it requires.
        writer_version: the lowest writer version that it requires.
        features: its reader and writer features.
    """

    id: str
    version: int
    schema: pa.Schema
    fields: tuple[Mapping[str, Any], ...]
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    reader_version: int
    writer_version: int
    features: tuple[str, ...]

    @classmethod
    def of(cls, table: DeltaTable) -> TableView:
        """Return the view of a table that delta-rs has loaded. Makes no request."""
        metadata, protocol, schema = table.metadata(), table.protocol(), table.schema()
        return cls(
            id=str(metadata.id),
            version=table.version(),
            schema=pa.schema(schema.to_arrow()),
            fields=tuple(json.loads(schema.to_json())["fields"]),
            partition_by=tuple(metadata.partition_columns),
            configuration=dict(metadata.configuration),
            reader_version=protocol.min_reader_version,
            writer_version=protocol.min_writer_version,
            features=tuple(sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})),
        )

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """The paths of all NOT NULL columns and nested fields."""
        return tuple(path for field in self.schema for path in _required((), field))

    def longest_text(self, name: str) -> int | None:
        """Return the maximum length of a ``varchar(n)`` column in characters; None for other columns."""
        [field] = [field for field in self.fields if field["name"] == name]
        found = _VARCHAR.fullmatch(str(field["metadata"].get(_BOUNDED_TEXT, "")))
        return int(found[1]) if found else None

    def obstacle(self) -> str | None:
        """Return why this sink must not write to the table: each obstacle by name, with the statement that removes it.
        None if the sink may write."""
        return "; ".join([*self._protocol(), *self._properties(), *self._columns()]) or None

    def _protocol(self) -> Iterator[str]:
        if self.reader_version > _BY_FEATURES[0] or self.writer_version > _BY_FEATURES[1]:
            yield f"it needs reader {self.reader_version} and writer {self.writer_version}, which are not known"
        if self.writer_version == _IDENTITY_COLUMNS:
            yield f"it needs writer 6, and so the table feature identityColumns. {_COPY}"
        for name in self.features:
            if name not in WRITER_FEATURES | READER_FEATURES:
                how = f"Remove it: ALTER TABLE … DROP FEATURE {name}" if name in _DROPPABLE else _COPY
                yield f"it has the table feature {name}, with which a file of this sink may be wrong. {how}"

    def _properties(self) -> Iterator[str]:
        for name in self.configuration:
            if name.startswith("delta.constraints."):
                constraint = name.removeprefix("delta.constraints.")
                yield (
                    f"it has the CHECK constraint {constraint!r} (table feature checkConstraints), whose SQL the sink"
                    f" can't evaluate. Remove it: ALTER TABLE … DROP CONSTRAINT {constraint}"
                )
        if self.configuration.get("delta.columnMapping.mode", "none") != "none":
            yield (
                "it maps columns to other names in its files (table feature columnMapping). End that: ALTER TABLE … SET"
                " TBLPROPERTIES ('delta.columnMapping.mode' = 'none')"
            )
        if self.configuration.get("delta.enableRowTracking") == "true" and "rowTracking" not in self.features:
            yield "it tracks rows (rowTracking). End it: ALTER TABLE … UNSET TBLPROPERTIES ('delta.enableRowTracking')"
        if (given := self.configuration.get(RETENTION_OF_MARKS)) is not None:
            yield (
                f"its property {RETENTION_OF_MARKS} is {given!r}: it forgets which batches are committed. Remove the"
                f" property: ALTER TABLE … UNSET TBLPROPERTIES ('{RETENTION_OF_MARKS}')"
            )

    def _columns(self) -> Iterator[str]:
        outer = {id(field) for field in self.fields}
        for field in _nested(self.fields):
            column = f"its column {field['name']!r}"
            for key, feature in _OF_COLUMNS.items():
                if key in field["metadata"]:
                    how = f"Remove it: ALTER TABLE … ALTER COLUMN `{field['name']}` DROP DEFAULT"
                    is_default = feature == "allowColumnDefaults"
                    yield f"{column} uses the table feature {feature}. {how if is_default else _COPY}"
            text = field["metadata"].get(_BOUNDED_TEXT)
            if text and id(field) not in outer:
                yield f"{column}, which is inside of another one, has the type {text}. {_COPY}"
            elif text and not _VARCHAR.fullmatch(text):
                how = f"Change it: ALTER TABLE … ALTER COLUMN `{field['name']}` TYPE STRING"
                is_char = _CHAR.fullmatch(text) is not None
                yield f"{column} has the type {text}, whose length delta-rs does not keep. {how if is_char else _COPY}"
            if isinstance(field["type"], str) and not _TYPES.fullmatch(field["type"]):
                yield f"{column} has the type {field['type']}. {_COPY} of the other columns"

    def refuse_unsupported(self, what: str) -> None:
        """Raise ConfigurationError if this sink must not write to the table."""
        if obstacle := self.obstacle():
            raise ConfigurationError(f"the delta sink can't write to {what}: {obstacle}. Nothing was written.")


def seconds_of(interval: str) -> int | None:
    """Return the seconds of a property such as ``interval 7 days``; None if the form of the property is unknown."""
    found = _INTERVAL.fullmatch(interval.strip())
    return int(found[1]) * _SECONDS[found[2].lower()] if found else None


def _required(outer: tuple[str, ...], field: pa.Field) -> Iterable[tuple[str, ...]]:
    """Yield the paths of NOT NULL fields: ``field`` itself and nested ones."""
    path = (*outer, field.name)
    if not field.nullable:
        yield path
    inner: Iterable[pa.Field] = ()
    if types.is_struct(field.type):
        inner = field.type
    elif types.is_list(field.type):
        inner = (field.type.value_field,)
    elif types.is_map(field.type):
        inner = (field.type.item_field,)
    for each in inner:
        yield from _required(path, each)


def _nested(fields: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield all fields, including nested ones. The elements of an array or map are yielded under the name of its
    field."""
    for field in fields:
        yield field
        yield from _inside(field["name"], field["type"])


def _inside(name: str, type: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(type, str):
        return
    if type["type"] == "struct":
        yield from _nested(type["fields"])
    for part in ("elementType", "keyType", "valueType"):
        if part in type:
            yield {"name": name, "type": type[part], "metadata": {}}
            yield from _inside(name, type[part])
