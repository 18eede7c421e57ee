"""Calls of the clients of lake tables, as steps."""

from typing import Any

import requests
from deltalake import DeltaTable
from sqlalchemy.engine.default import DefaultDialect

from tests.campaigns.every_step.steps import Steps
from twopc_iceberg.files import DurableFile, DurableFileIO


def on_sql(steps: Steps) -> None:
    """Turn every statement and every commit of a SQL catalog into steps."""

    def described(_: object, __: object, statement: str, *___: object, **____: object) -> tuple[str, bool]:
        command = statement.split(maxsplit=1)[0].upper()
        return command, command != "SELECT"

    steps.patch_requests(DefaultDialect, "do_execute", described)
    steps.patch(DefaultDialect, changes=("do_commit",))


def on_requests(steps: Steps) -> None:
    """Turn every request to a REST catalog into a step."""

    def described(_: object, request: Any, **__: object) -> tuple[str, bool]:
        name = f"{request.method} {request.path_url.rpartition('/')[2]}"
        return name, request.method not in ("GET", "HEAD")

    steps.patch_requests(requests.Session, "send", described)


def on_files(steps: Steps, is_on_disk: bool) -> None:
    """Turn what happens to the files of an Iceberg table into steps."""
    steps.patch(DurableFileIO, reads=("names_in", "read", "first_changed"), changes=("delete",))
    if not is_on_disk:  # where the calls of the operating system are steps
        steps.patch(DurableFileIO, changes=("write",))
        steps.patch(DurableFile, changes=("create",))


def on_delta(steps: Steps) -> None:
    """Turn every call of delta-rs that the sink makes into a step."""
    steps.patch(
        DeltaTable, reads=("__init__", "transaction_version"), changes=("create_checkpoint", "cleanup_metadata")
    )
