"""DuckDB's extensions, loaded from wheels in the development environment rather than downloaded."""

import importlib.util
from pathlib import Path

import duckdb

from twopc_kafka_broker import DevelopmentError


def lake_reader() -> duckdb.DuckDBPyConnection:
    """Return a connection to a DuckDB that can read Iceberg and Delta.

    Raises:
        DevelopmentError: an extension is not available for this platform.
    """
    connection = duckdb.connect()
    _load(connection, "avro", "iceberg", "delta")
    return connection


def load(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Load extensions. Skip the test if one is not available for this platform."""
    import pytest

    try:
        _load(connection, *names)
    except DevelopmentError as error:
        pytest.skip(str(error))


def _load(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    for name in names:
        file = _extension_file(name)
        if file is None:
            raise DevelopmentError(f"no wheel of DuckDB's extension {name} is installed for this platform")
        connection.execute(f"LOAD '{file}'")


def _extension_file(name: str) -> Path | None:
    """Return the file of an extension; None if it is not available for this platform."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    if found is None or found.origin is None:
        return None
    [file] = Path(found.origin).parent.rglob(f"{name}.duckdb_extension")
    return file
