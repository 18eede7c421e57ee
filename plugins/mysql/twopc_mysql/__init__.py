"""MariaDB and MySQL as a two-phase-commit sink of twopc."""

from twopc_mysql.sink import MysqlSink

__all__ = ["MysqlSink"]
