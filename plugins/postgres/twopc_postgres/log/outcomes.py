"""What PostgreSQL's errors mean for a commit log, by SQLSTATE. No I/O."""

from __future__ import annotations

import psycopg

from twopc.errors import ConfigurationError, Retriable, TwoPhaseCommitError
from twopc_postgres.outcomes import BUSY, first_line, is_login


def log_request_failed(error: psycopg.Error, url: str) -> TwoPhaseCommitError:
    """Return the error for a failed request to the commit log at ``url``. An insert that failed with ``Retriable`` may
    have created its entry."""
    if error.pgconn is not None and error.pgconn.needs_password:
        return ConfigurationError(
            f"the server of the commit log at {url} asks for a password, and none was found. Set PGPASSWORD, or use a"
            " password file or a service file"
        )
    sqlstate = error.sqlstate or ""
    is_refused = {sqlstate, sqlstate[:2]} & _LOG_REFUSALS if sqlstate else is_login(error)
    if is_refused and sqlstate != _TAKEN:
        return ConfigurationError(
            f"PostgreSQL refuses the commit log at {url}: {first_line(error)}. This request changed nothing."
            f" {LOG_ADVICE.get(sqlstate, _OF_ANOTHER_TABLE)}"
        )
    return Retriable(
        f"the store of the commit log at {url} gave no answer: {first_line(error)}. Is the server up, does it accept"
        " writes (a standby does not, nor does a role with default_transaction_read_only), are its synchronous standbys"
        " connected, and are user, database and password right?"
    )


_LOG_REFUSALS = frozenset(("0A", "22", "23", "28", "3D", "3F", "42", "44", BUSY, "P0"))
"""SQLSTATEs and classes with which the server itself refuses a login or a statement. A refused statement has had no
effect. After any other SQLSTATE, such as one made up by a pooler, a commit may have happened without a response, so the
log looks for the entry."""

_TAKEN = "23505"
"""unique_violation. Not a permanent refusal: ON CONFLICT may raise it while the log's index is being rebuilt (REINDEX
CONCURRENTLY)."""

LOG_ADVICE: dict[str, str] = {
    "": "Are user, database and password right?",
    "3F000": "Create the schema, or correct its name in the URL",
    "42501": "Grant this role USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on twopc_log",
    "42P01": "Something else than twopc has dropped the table: restore it from a backup",
}
"""SQLSTATE → advice for a refused commit log."""

_OF_ANOTHER_TABLE = (
    "Is it a table (log text, slot numeric(20), entry bytea NOT NULL, PRIMARY KEY (log, slot))? Otherwise use another"
    " schema"
)
