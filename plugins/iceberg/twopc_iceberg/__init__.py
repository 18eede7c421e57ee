"""Apache Iceberg tables as a two-phase-commit sink of twopc."""

from twopc_iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
