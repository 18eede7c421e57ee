"""Compression of a whole file, for the formats that are lines of text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from twopc_files.formats import Lent, Output

EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""What Spark, DuckDB and pyarrow know a compression by, at the end of a file's name."""


def compressed(file: Output, compression: str) -> Any:
    """A stream into ``file`` that is written and closed; ``file`` stays open."""
    lent = Lent(file)
    return lent if compression == "none" else pa.CompressedOutputStream(lent, compression)
