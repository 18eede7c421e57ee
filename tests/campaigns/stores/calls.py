"""Calls of stores other than a disk and S3, as steps."""

from __future__ import annotations

from typing import Any

from fsspec.implementations.memory import MemoryFileSystem
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

from tests.campaigns.every_step.steps import Steps, on_disk
from twopc_files.stores.remote import RemoteFile


def on_renaming(steps: Steps) -> None:
    """Turn the calls of a ``Remote`` that renames, and of a commit log on a disk, into steps."""
    from tests.campaigns.stores.places import Renaming

    steps.patch(Renaming, reads=("info", "isdir", "ls"), changes=("open", "makedirs", "mv", "rm_file"))
    steps.patch(RemoteFile, changes=("write", "made_durable"))
    on_disk(steps)


def in_memory(steps: Steps) -> None:
    """Turn the calls of a ``Remote`` that copies, and of the logs, into steps."""
    steps.patch(
        MemoryFileSystem,
        reads=("info", "ls", "find", "cat_file"),
        changes=("open", "cp_file", "rm_file", "pipe_file"),
    )
    steps.patch(RemoteFile, changes=("write", "made_durable"))


def on_gcs(steps: Steps) -> None:
    """Turn every request to Google Cloud Storage into a step."""
    request = GCSFileSystem._call

    async def step(client: Any, method: str, path: str, *arguments: Any, **parameters: Any) -> Any:
        name, changes = f"{method} {path.partition('?')[0].rpartition('/b/')[2]}", method != "GET"
        steps.begins(name, changes)
        answer = await request(client, method, path, *arguments, **parameters)
        if changes:
            steps.is_done(name)
        return answer

    GCSFileSystem._call = step
