"""Any database with ordinary transactions as a two-phase-commit sink of twopc, by staging tables."""

from twopc_sql.sink import SqlSink

__all__ = ["SqlSink"]
