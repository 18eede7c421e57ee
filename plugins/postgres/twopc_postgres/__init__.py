"""PostgreSQL as a two-phase-commit sink of twopc, and as a store of commit logs."""

from twopc_postgres.log.store import PostgresLogStore
from twopc_postgres.sink import PostgresSink

__all__ = ["PostgresLogStore", "PostgresSink"]
