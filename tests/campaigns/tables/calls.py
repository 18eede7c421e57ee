"""Calls of the clients of lake tables, as steps."""

from typing import Any

import requests
from deltalake import DeltaTable
from sqlalchemy.engine.default import DefaultDialect

from tests.campaigns.every_step.steps import Steps
from twopc_iceberg.files import DurableFile, DurableFileIO


def on_sql(steps: Steps) -> None:
    """Turn every statement and every commit of a SQL catalog into steps."""
    execute: Any = DefaultDialect.do_execute

    def step(dialect: Any, cursor: Any, statement: str, *arguments: Any, **named: Any) -> None:
        command = statement.split(maxsplit=1)[0].upper()
        changes = command != "SELECT"
        steps.begins(command, changes)
        execute(dialect, cursor, statement, *arguments, **named)
        if changes:
            steps.is_done(command)

    DefaultDialect.do_execute = step  # type: ignore[method-assign, assignment]
    steps.patch(DefaultDialect, changes=("do_commit",))


def on_requests(steps: Steps) -> None:
    """Turn every request to a REST catalog into a step."""
    send = requests.Session.send

    def step(session: Any, request: Any, **named: Any) -> Any:
        changes = request.method not in ("GET", "HEAD")
        name = f"{request.method} {request.path_url.rpartition('/')[2]}"
        steps.begins(name, changes)
        answer = send(session, request, **named)
        if changes:
            steps.is_done(name)
        return answer

    requests.Session.send = step  # type: ignore[method-assign, assignment]


def on_files(steps: Steps, is_on_disk: bool) -> None:
    """Turn what happens to the files of an Iceberg table into steps."""
    steps.patch(DurableFileIO, reads=("names_in", "read", "lengths"), changes=("delete",))
    if not is_on_disk:  # where the calls of the operating system are steps
        steps.patch(DurableFileIO, changes=("write",))
        steps.patch(DurableFile, changes=("create",))


def on_delta(steps: Steps) -> None:
    """Turn every call of delta-rs that the sink makes into a step."""
    steps.patch(
        DeltaTable, reads=("__init__", "transaction_version"), changes=("create_checkpoint", "cleanup_metadata")
    )
