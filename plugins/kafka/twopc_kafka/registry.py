"""Values in the format of a schema registry, for Spark: a magic byte and the schema's id, and then the record.

The registry is asked on the driver, where a DataFrame is made; Spark's own functions encode and decode, without Python.
``to_avro`` and ``from_avro`` need Spark's package ``spark-avro``, of Spark's version.

    values = registry.to_avro(orders, "order", subject="orders-value", registry={"url": "http://registry:8081"})
    orders.select("key", values.alias("value")).writeStream.foreachBatch(foreach_batch({"orders": sink}, log=log))
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.errors import ConfigurationError, Retriable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

Registry: TypeAlias = "Mapping[str, Any] | SchemaRegistryClient"
"""The options of Confluent's SchemaRegistryClient, such as ``url`` and ``basic.auth.user.info``, or such a client."""

_MAGIC = b"\0"
_ID_BYTES = 4
_HEADER_BYTES = len(_MAGIC) + _ID_BYTES
_REST = 2**31 - 1  # Spark's largest length of a substring


def to_avro(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: Registry,
    schema: str | None = None,
    register: bool = True,
    normalize: bool = False,
) -> Column:
    """Return ``column`` of ``frame`` as Avro, after the id of its schema. Null stays null.

    Args:
        frame: has the column, and with it its type.
        column: what to encode, such as ``struct("id", "note")``.
        subject: the subject in the registry, such as ``orders-value``.
        registry: where the schema is.
        schema: the Avro schema as JSON, or None for the newest of the subject; if the subject has none, for one that
            has the column's type, in which each field that may be null is so by default.
        register: whether to register ``schema``. If not, the subject must have it.
        normalize: whether the registry compares schemas in their normal form.

    Raises:
        ConfigurationError: the registry refuses the schema, for example as incompatible, or does not have it; or the
            column does not fit it, in which case the error names the field and both types. Nothing was written.
        Retriable: the registry did not answer.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql.avro.functions import to_avro as encoded

    kind = frame.select(column).schema[0].dataType
    made = None if schema else json.dumps(_avro_of(kind, re.sub(r"\W", "_", subject)))
    chosen = _Chosen(subject, _client(registry), "AVRO", register, normalize)
    schema_id, schema = chosen.schema(schema, made)
    _refuse_misfit(kind, json.loads(schema), subject, {})
    given = F.col(column) if isinstance(column, str) else column
    return F.when(given.isNotNull(), F.concat(F.lit(bytearray(_header(schema_id))), encoded(given, schema)))


def from_avro(
    column: str | Column,
    *,
    subject: str,
    registry: Registry,
    reader: str | None = None,
    also: Sequence[str] = (),
) -> Column:
    """Return Avro as a struct, each record decoded by the schema of its own id. Null stays null.

    The ids are those that the subject has when this is called, also the deleted ones. A record with another id, or one
    that can't be decoded, fails the batch, and the error names the id. For schemas that are registered while a query
    runs, call this for each batch, within the function that ``foreachBatch`` is given.

    Args:
        column: the binary column, such as ``value`` of Spark's Kafka source.
        subject: the subject in the registry, such as ``orders-value``.
        registry: where the schemas are.
        reader: the Avro schema, as JSON, that all records are resolved to; None for the newest of the subject.
        also: further subjects whose schemas the records may have.

    Raises:
        ConfigurationError: the registry does not have the subject, or a schema there can't be resolved to ``reader``.
        Retriable: the registry did not answer.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql.avro.functions import from_avro as decoded

    client = _client(registry)
    writers = dict(_asked(subject, lambda: [*_all_of(client, [subject, *also])]))
    if reader is None:
        reader = next(iter(_asked(subject, lambda: [*_all_of(client, [subject], only_newest=True)])))[1]
    value = F.col(column) if isinstance(column, str) else column
    header, body = F.substring(value, 1, _HEADER_BYTES), F.substring(value, _HEADER_BYTES + 1, _REST)
    unknown = F.concat(
        F.lit("a value has no id of a schema in subject "),
        F.lit(subject),
        F.lit(": it begins with the bytes "),
        F.hex(header),
        F.lit(". A schema that was registered since this query began is known after its restart"),
    )
    found = F.when(value.isNull(), F.lit(None))
    for schema_id, writer in writers.items():
        _refuse_unresolvable(writer, reader, schema_id, subject)
        options = {"mode": "FAILFAST", "avroSchema": reader}
        found = found.when(header == F.lit(bytearray(_header(schema_id))), decoded(body, writer, options))
    return found.otherwise(F.raise_error(unknown))


def to_json_schema(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: Registry,
    schema: str | None = None,
    register: bool = True,
    normalize: bool = False,
) -> Column:
    """Return ``column`` of ``frame`` as JSON, after the id of its schema. Null stays null.

    The arguments and errors are those of ``to_avro``, with a JSON schema, which is not made from the column's type: the
    values are not checked against the schema, only the names of the top-level fields.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    chosen = _Chosen(subject, _client(registry), "JSON", register, normalize)
    schema_id, schema = chosen.schema(schema, None)
    _refuse_other_names(frame.select(column).schema[0].dataType, json.loads(schema), subject)
    given = F.col(column) if isinstance(column, str) else column
    encoded = F.encode(F.to_json(given, {"ignoreNullFields": "false"}), "UTF-8")
    return F.when(given.isNotNull(), F.concat(F.lit(bytearray(_header(schema_id))), encoded))


def from_json_schema(column: str | Column, as_type: StructType | str) -> Column:
    """Return JSON after the id of its schema as a struct. Null stays null.

    JSON has the names of its fields in it, so the registry is not asked: ``as_type`` decides what is read. A value
    without the magic byte fails the batch, as does one that is no JSON.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    value = F.col(column) if isinstance(column, str) else column
    has_header = F.substring(value, 1, 1).eqNullSafe(F.lit(bytearray(_MAGIC))) & (F.length(value) > _HEADER_BYTES)
    text = F.decode(F.substring(value, _HEADER_BYTES + 1, _REST), "UTF-8")
    begins = F.concat(F.lit("a value has no id of a schema: it begins with "), F.hex(F.substring(value, 1, 5)))
    parsed = F.from_json(text, as_type, {"mode": "FAILFAST"})
    return F.when(value.isNull(), F.lit(None)).when(has_header, parsed).otherwise(F.raise_error(begins))


def to_protobuf(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: Registry,
    message: str,
    descriptors: bytes,
    register: bool = True,
    normalize: bool = False,
) -> Column:
    """Return ``column`` of ``frame`` as Protocol Buffers, after the id of the schema and the place of the message in
    its file. Null stays null.

    Needs Spark's package ``spark-protobuf``. The names of the columns are compared here, their types by the encoder,
    before the batch votes.

    Args:
        frame: see ``to_avro``, as for ``column``, ``subject`` and ``registry``.
        column: what to encode.
        subject: the subject in the registry.
        registry: where the schema is.
        message: the full name of the message, such as ``sales.Order``.
        descriptors: a FileDescriptorSet, as ``protoc --include_imports --descriptor_set_out`` writes it. The files that
            are imported are registered as subjects of their names.
        register: whether to register the files.
        normalize: whether the registry compares schemas in their normal form.

    Raises:
        TwoPhaseCommitError: the same as ``to_avro``.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql.protobuf.functions import to_protobuf as encoded

    files = _files(descriptors)
    file, indexes, fields = _place(files, message)
    chosen = _Chosen(subject, _client(registry), "PROTOBUF", register, normalize)
    schema_id = _asked(subject, lambda: _id_of_file(chosen, files, file, subject).schema_id)
    names: list[str] = getattr(frame.select(column).schema[0].dataType, "names", [])
    if strangers := [name for name in names if name not in fields]:
        raise ConfigurationError(f"{message}: the message has no field for the column {strangers[0]!r}")
    given = F.col(column) if isinstance(column, str) else column
    header = F.lit(bytearray(_header(schema_id) + indexes))
    return F.when(given.isNotNull(), F.concat(header, encoded(given, message, binaryDescriptorSet=descriptors)))


def from_protobuf(column: str | Column, *, message: str, descriptors: bytes) -> Column:
    """Return Protocol Buffers after the id of their schema as a struct. Null stays null.

    Fields are found by their numbers, so the registry is not asked: what ``descriptors`` has is read. A value of
    another message of the file fails the batch, as does one without the magic byte.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql.protobuf.functions import from_protobuf as decoded

    _, indexes, _ = _place(_files(descriptors), message)
    value = F.col(column) if isinstance(column, str) else column
    begins = F.concat(
        F.lit(f"a value is no {message} of a schema registry: it begins with "), F.hex(F.substring(value, 1, 12))
    )
    found = F.when(value.isNull(), F.lit(None))
    has_magic = F.substring(value, 1, 1) == F.lit(bytearray(_MAGIC))
    for form in {indexes, *([_FIRST_IN_FULL] if indexes == _FIRST else [])}:
        place = F.substring(value, _HEADER_BYTES + 1, len(form)) == F.lit(bytearray(form))
        body = F.substring(value, _HEADER_BYTES + len(form) + 1, _REST)
        read = decoded(body, message, options={"mode": "FAILFAST"}, binaryDescriptorSet=descriptors)
        found = found.when(has_magic & place, read)
    return found.otherwise(F.raise_error(begins))


_FIRST, _FIRST_IN_FULL = b"\0", b"\x02\0"
"""The two forms of the list of indexes that stands for the first message of a file."""


def _files(descriptors: bytes) -> dict[str, Any]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return {file.name: file for file in FileDescriptorSet.FromString(descriptors).file}


def _place(files: Mapping[str, Any], message: str) -> tuple[Any, bytes, set[str]]:
    """Return the file of a message, the list of its indexes there, outermost first, and the names of its fields."""
    for file in files.values():
        found, path, last = file.message_type, [], None
        inside = message.removeprefix(f"{file.package}.") if file.package else message
        for name in inside.split("."):
            numbers = [number for number, each in enumerate(found) if each.name == name]
            if not numbers:
                break
            path += numbers
            last, found = found[numbers[0]], found[numbers[0]].nested_type
        else:
            indexes = _FIRST if path == [0] else b"".join(map(_zigzag, [len(path), *path]))
            return file, indexes, {field.name for field in (last.field if last else ())}
    raise ConfigurationError(f"'descriptors' has no message {message!r}")


def _zigzag(number: int) -> bytes:
    """Return a number from 0 on as a signed varint."""
    left, encoded = 2 * number, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


def _id_of_file(chosen: _Chosen, files: Mapping[str, Any], file: Any, subject: str) -> Any:
    """Register or look up a file, and before it what it imports. Google's own files are known everywhere."""
    from confluent_kafka.schema_registry import Schema, SchemaReference

    references = [
        SchemaReference(name, name, _id_of_file(chosen, files, files[name], name).version)
        for name in file.dependency
        if not name.startswith("google/protobuf/")
    ]
    schema = Schema(base64.standard_b64encode(file.SerializeToString()).decode(), chosen.kind, references)
    return chosen.registered(subject, schema)


# The registry. --------------------------------------------------------------------------------------------------------


def _client(registry: Registry) -> SchemaRegistryClient:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigurationError(
            f"a schema registry needs the extra: pip install 'twopc-kafka[registry]' ({error})"
        ) from error
    return SchemaRegistryClient.new_client(dict(registry)) if isinstance(registry, Mapping) else registry


_CONFLICT, _UNPROCESSABLE, _NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 409, 422, 404, 429, 500


def _asked(subject: str, ask: Callable[[], Any]) -> Any:
    """Ask the registry, and raise its refusal as an error of this project."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        return ask()
    except SchemaRegistryError as error:
        status, text = int(error.http_status_code), str(error.error_message)
        if status >= _SERVER_ERROR or status == _TOO_MANY:
            raise Retriable(f"the schema registry answered {status} for subject {subject!r}: {text}") from None
        why = {
            _CONFLICT: "the schema is not compatible with those that the subject has",
            _UNPROCESSABLE: "the schema is not valid",
            _NOT_FOUND: "it does not have the subject, or not this schema",
        }.get(status, "it refused the request")
        raise ConfigurationError(f"the schema registry refused subject {subject!r}: {why} ({status}: {text})") from None
    except OSError as error:
        raise Retriable(f"the schema registry did not answer: {type(error).__name__}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise Retriable(f"the schema registry did not answer: {type(error).__name__}") from None
        raise


@dataclass(frozen=True)
class _Chosen:
    """Which schema of a subject is written by."""

    subject: str
    client: SchemaRegistryClient
    kind: str
    register: bool
    normalize: bool

    def schema(self, given: str | None, made: str | None) -> tuple[int, str]:
        """Return the id and the text of the schema ``given``, else of the subject's newest, else of the one ``made``.
        Raises like ``to_avro``."""
        if given is None and (newest := _asked(self.subject, self._newest)) is not None:
            return newest  # type: ignore[no-any-return]
        if (schema := given or made) is None:
            raise ConfigurationError(f"subject {self.subject!r} has no schema in the registry: pass one as 'schema'")
        return _asked(self.subject, lambda: self._id_of(schema)), schema

    def _newest(self) -> tuple[int, str] | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            found: Any = self.client.get_latest_version(self.subject)
        except SchemaRegistryError as error:
            if int(error.http_status_code) == _NOT_FOUND:
                return None
            raise
        return int(found.schema_id), _text(found.schema, self.subject)

    def _id_of(self, schema: str) -> int:
        from confluent_kafka.schema_registry import Schema

        return int(self.registered(self.subject, Schema(schema, self.kind)).schema_id)

    def registered(self, subject: str, schema: Any) -> Any:
        """Register a schema, or look it up."""
        ask: Any = self.client.register_schema_full_response if self.register else self.client.lookup_schema
        return ask(subject, schema, normalize_schemas=self.normalize)


def _all_of(
    client: SchemaRegistryClient, subjects: Sequence[str], only_newest: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the id and the text of each schema of ``subjects``, also of the deleted ones."""
    for subject in subjects:
        versions = ["latest"] if only_newest else client.get_versions(subject, deleted=True)
        for version in versions:
            found: Any = client.get_version(subject, version, deleted=not only_newest)  # type: ignore[arg-type]
            yield int(found.schema_id), _text(found.schema, subject)


def _text(schema: Any, subject: str) -> str:
    if schema.references:
        raise ConfigurationError(
            f"a schema of subject {subject!r} refers to other schemas, which is not supported: register one that"
            " contains them"
        )
    return str(schema.schema_str)


def _header(schema_id: int) -> bytes:
    return _MAGIC + schema_id.to_bytes(_ID_BYTES, "big")


# Spark's types and Avro's. --------------------------------------------------------------------------------------------

_FITTING: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "tinyint": ("int",),
    "smallint": ("int",),
    "int": ("int",),
    "bigint": ("long",),
    "float": ("float",),
    "double": ("double",),
    "string": ("string", "enum"),
    "binary": ("bytes", "fixed"),
    "date": ("int:date",),
    "timestamp": ("long:timestamp-millis", "long:timestamp-micros"),
    "timestamp_ntz": ("long:local-timestamp-millis", "long:local-timestamp-micros"),
    "decimal": ("bytes:decimal", "fixed:decimal"),
}
"""Spark's type → the Avro types, each with its logical type, that Spark's ``to_avro`` encodes it as."""


def _avro_of(kind: DataType, name: str) -> Any:
    """Return an Avro schema for a Spark type. Each field that may be null is null by default, so that the next field
    can be added compatibly."""
    from pyspark.sql import types as T  # noqa: N812  # its usual name

    def nullable(of: DataType, is_nullable: bool, inner: str) -> Any:
        return ["null", _avro_of(of, inner)] if is_nullable else _avro_of(of, inner)

    match kind:
        case T.StructType():
            fields = [
                {"name": each.name, "type": nullable(each.dataType, each.nullable, f"{name}_{each.name}")}
                | ({"default": None} if each.nullable else {})
                for each in kind
            ]
            return {"type": "record", "name": name, "fields": fields}
        case T.ArrayType():
            return {"type": "array", "items": nullable(kind.elementType, kind.containsNull, f"{name}_item")}
        case T.MapType() if isinstance(kind.keyType, T.StringType):
            return {"type": "map", "values": nullable(kind.valueType, kind.valueContainsNull, f"{name}_value")}
        case T.DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    fitting = _FITTING.get(kind.simpleString())
    if fitting is None:
        raise ConfigurationError(f"Avro has no type for {kind.simpleString()} ({name}): cast it")
    primitive, _, logical = fitting[-1].partition(":") if ":" in fitting[0] else (fitting[0], "", "")
    return {"type": primitive, "logicalType": logical} if logical else primitive


def _refuse_misfit(kind: DataType, avro: Any, path: str, named: dict[str, Any]) -> None:
    """Compare a Spark type with an Avro schema by the names of the fields. Whether a null comes where the schema has
    none is found by the encoder, before the batch votes."""
    from pyspark.sql import types as T  # noqa: N812  # its usual name

    avro = _resolved(avro, named)
    if isinstance(avro, list):
        branches = [each for each in avro if each != "null"]
        if len(branches) != 1:
            raise ConfigurationError(f"{path}: Avro's {_shown(avro)} is a union of several types: not supported")
        return _refuse_misfit(kind, branches[0], path, named)
    of = avro if isinstance(avro, dict) else {"type": avro}
    match kind, of["type"]:
        case T.StructType(), "record":
            return _refuse_misfit_of_fields(kind, of["fields"], path, named)
        case T.ArrayType(), "array":
            return _refuse_misfit(kind.elementType, of["items"], f"{path}[]", named)
        case T.MapType(), "map" if isinstance(kind.keyType, T.StringType):
            return _refuse_misfit(kind.valueType, of["values"], f"{path}{{}}", named)
    name, has_digits = kind.simpleString(), True
    if isinstance(kind, T.DecimalType):
        name, has_digits = "decimal", (of.get("precision"), of.get("scale", 0)) == (kind.precision, kind.scale)
    logical = f":{of['logicalType']}" if of.get("logicalType") in _LOGICAL else ""
    if f"{of['type']}{logical}" not in _FITTING.get(name, ()) or not has_digits:
        raise ConfigurationError(f"{path}: Spark's {kind.simpleString()} does not fit Avro's {_shown(avro)}")
    return None


def _refuse_misfit_of_fields(kind: Any, fields: Sequence[Any], path: str, named: dict[str, Any]) -> None:
    known = {each["name"] for each in fields}
    if missing := [name for name in kind.names if name not in known]:
        raise ConfigurationError(f"{path}: the schema has no field for the column {missing[0]!r}")
    for field in fields:
        if field["name"] in kind.names:
            _refuse_misfit(kind[field["name"]].dataType, field["type"], f"{path}.{field['name']}", named)
        elif "null" not in field["type"]:
            raise ConfigurationError(f"{path}: there is no column for the field {field['name']!r}, which can't be null")


_LOGICAL = {name.partition(":")[2] for names in _FITTING.values() for name in names} - {""}


def _resolved(avro: Any, named: dict[str, Any]) -> Any:
    """Return the definition for a name, and note that of each named type. ``{"type": {...}}`` counts as what is in
    it."""
    if isinstance(avro, dict) and isinstance(avro["type"], dict | list):
        return _resolved(avro["type"], named)
    if isinstance(avro, dict) and "name" in avro:
        named[avro["name"]] = named[f"{avro.get('namespace', '')}.{avro['name']}"] = avro
    return named.get(avro, avro) if isinstance(avro, str) else avro


def _shown(avro: Any) -> str:
    return json.dumps(avro) if not isinstance(avro, dict) else str(avro.get("logicalType", avro["type"]))


def _refuse_unresolvable(writer: str, reader: str, schema_id: int, subject: str) -> None:
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse

    checker: Any = ReaderWriterCompatibilityChecker  # it has no types
    result = checker().get_compatibility(parse(reader), parse(writer))
    if result.compatibility is not SchemaCompatibilityType.compatible:
        raise ConfigurationError(
            f"records with the schema of id {schema_id} in subject {subject!r} can't be read as 'reader':"
            f" {'; '.join(sorted(result.messages))}"
        )


def _refuse_other_names(kind: DataType, schema: Any, subject: str) -> None:
    names = set(getattr(kind, "names", ()))
    known, required = set(schema.get("properties", names)), set(schema.get("required", ()))
    if wrong := sorted(names - known if schema.get("additionalProperties") is False else ()) or sorted(
        required - names
    ):
        raise ConfigurationError(f"the columns of subject {subject!r} do not fit its schema: {', '.join(wrong)}")
