"""DuckDB's extensions, from wheels that the development environment has: nothing downloads one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb


def load(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Load extensions. Skip the test where the index has none for this platform."""
    import pytest

    for name in names:
        file = extension_file(name)
        if file is None:
            pytest.skip(f"no wheel of DuckDB's extension {name} is installed")
        connection.execute(f"LOAD '{file}'")


def extension_file(name: str) -> Path | None:
    """Return the file of an extension, or None where the index has none for this platform."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    if found is None or found.origin is None:
        return None
    [file] = Path(found.origin).parent.rglob(f"{name}.duckdb_extension")
    return file
