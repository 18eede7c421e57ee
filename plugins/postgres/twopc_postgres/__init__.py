"""PostgreSQL as a two-phase-commit sink of twopc."""

from twopc_postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
