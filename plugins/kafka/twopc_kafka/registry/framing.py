"""The frame of a record: a magic byte and the id of its schema, in front of the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka.schema_registry import Schema
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from twopc.errors import ConfigurationError
from twopc_kafka.registry.fitting import Fault
from twopc_kafka.registry.subjects import Subject

_MAGIC, _HEADER_BYTES = b"\0", 5
_REST = 2**31 - 1  # Spark's longest substring


def literal(value: bytes) -> Column:
    """Return a column that is always ``value``."""
    return F.lit(bytearray(value))


def after(value: Column, start: int) -> Column:
    """Return a value without its first ``start`` bytes."""
    return F.substring(value, start + 1, _REST)


def framed(
    column: str | Column, schema_id: int, faults: Sequence[tuple[Fault, str]], encoded: Callable[[Column], Column]
) -> Column:
    """Encode a column, with the frame in front of each value. A value with one of the faults fails the batch."""
    value = _column(column)
    found = F.when(value.isNull(), F.lit(None))
    for is_fault, message in faults:
        found = found.when(is_fault(value), F.raise_error(F.lit(message)))
    return found.otherwise(F.concat(literal(_header(schema_id)), encoded(value)))


def by_id(
    column: str | Column, subjects: Sequence[Subject], decoded: Callable[[Column, Subject, Schema], Column]
) -> Column:
    """Return an expression with a branch for each schema of the subjects, chosen by the id in a record's header."""
    schemas: dict[int, tuple[Subject, Schema]] = {}
    for subject in subjects:
        for schema_id, schema in subject.schemas():
            first, same = schemas.setdefault(schema_id, (subject, schema))
            if same.schema_str != schema.schema_str:
                names = f"in {first.name!r} and in {subject.name!r}"
                raise ConfigurationError(f"the id {schema_id} is of two schemas, {names}")
    value = _column(column)
    header, body = F.substring(value, 1, _HEADER_BYTES), after(value, _HEADER_BYTES)
    found, refused = F.when(value.isNull(), F.lit(None)), []
    for schema_id, (subject, schema) in schemas.items():
        try:
            branch = decoded(body, subject, schema)
        except ConfigurationError as error:  # It may be an old version that no record uses.
            refused.append(f"records with the schema id {schema_id} can't be read: {error}")
            branch = F.raise_error(F.lit(refused[-1]))
        found = found.when(header == literal(_header(schema_id)), branch)
    if schemas and len(refused) == len(schemas):
        raise ConfigurationError(refused[-1])
    has_id = (F.length(header) == _HEADER_BYTES) & (F.substring(value, 1, 1) == literal(_MAGIC))
    names = ", ".join(each.name for each in subjects)
    ids = f"which subject {names} did not have when the column was built: {[*sorted(schemas)]}"
    record_id = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
    unknown = F.concat(F.lit("a record has the schema id "), record_id, F.lit(f", {ids}. Build it for each batch"))
    unframed = F.concat(F.lit("a record has no schema id: it begins with the bytes 0x"), F.hex(header))
    return found.otherwise(F.raise_error(F.when(has_id, unknown).otherwise(unframed)))


def _column(column: str | Column) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _header(schema_id: int) -> bytes:
    return _MAGIC + schema_id.to_bytes(_HEADER_BYTES - 1, "big")
