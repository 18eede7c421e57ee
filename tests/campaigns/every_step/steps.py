"""The steps of a process: its calls into a store, and the events of its coordinator.

A moment is a point at which a process may be killed: before every step, and after every step that changes something. Of
consecutive steps that only read, just the first has a moment, because the store does not change between them.
"""

import builtins
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fsspec.implementations.local import LocalFileSystem

import twopc
from twopc.events import Event, PhaseEntered

NEVER = 1 << 62


class Killed(BaseException):
    """Replaces the kill of a process whose store would die with it."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die() -> None:
    raise Killed


class Steps:
    """Counts the moments of this process, and ends the process at one of them. Thread-safe."""

    def __init__(self, at: int, end: Callable[[], None]) -> None:
        self.moments: list[str] = []
        self.steps = 0
        self._at = at
        self._end = end
        self._one_at_a_time = threading.Lock()
        self._has_just_read = False
        self._is_aside = False

    def forget(self) -> None:
        """Let no later step have an effect."""
        self._at = NEVER

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Around calls that are not of the query: they are no steps."""
        self._is_aside = True
        try:
            yield
        finally:
            self._is_aside = False

    def begins(self, name: str, changes: bool = True) -> None:
        self.steps += not self._is_aside
        self._come_to(f"before {name}", is_read=not changes)

    def is_done(self, name: str) -> None:
        self._come_to(f"after {name}", is_read=False)

    def _come_to(self, moment: str, is_read: bool) -> None:
        if self._is_aside:
            return
        with self._one_at_a_time:
            if not (is_read and self._has_just_read):
                self.moments.append(moment)
            self._has_just_read = is_read
            if len(self.moments) > self._at:  # a dead process does nothing in another thread or a ``finally`` either
                self._end()

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        self.begins(event.phase.value if isinstance(event, PhaseEntered) else type(event).__name__)

    def patch(self, owner: Any, reads: tuple[str, ...] = (), changes: tuple[str, ...] = ()) -> None:
        """Turn calls of a class or a module, ``owner``, into steps until this process ends."""
        for name in (*reads, *changes):
            setattr(owner, name, self._stepping(getattr(owner, name), name in changes))

    def _stepping(self, call: Callable[..., Any], changes: bool) -> Callable[..., Any]:
        @wraps(call)
        def step(*arguments: Any, **keywords: Any) -> Any:
            self.begins(call.__name__, changes)
            result = call(*arguments, **keywords)
            if changes:
                self.is_done(call.__name__)
            return result

        return step


def on_disk(steps: Steps) -> None:
    """Turn what creates, changes and removes files of a disk into steps, and what lists and reads them."""

    class Written(io.FileIO):
        def write(self, data: Any) -> int:
            steps.begins("write")
            length = super().write(data)
            steps.is_done("write")
            return length

    def stepping(opened: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if mode not in ("xb", "wb"):
                return opened(file, mode, *arguments, **keywords)
            steps.begins("create")
            written = Written(file, mode)
            steps.is_done("create")
            return io.BufferedWriter(written)

        return open

    builtins.open = stepping(builtins.open)
    Path.open = stepping(Path.open)  # type: ignore[method-assign]
    # Not os.rename and similar functions, to which Python 3.10's pathlib keeps references.
    steps.patch(
        Path, reads=("lstat", "is_dir", "iterdir", "read_bytes"), changes=("rename", "replace", "unlink", "mkdir")
    )
    steps.patch(os, reads=("scandir",), changes=("link", "fsync"))
    steps.patch(LocalFileSystem, reads=("ls", "cat_file", "find"), changes=("rm_file",))


def on_azure(steps: Steps) -> None:
    """Turn every request to a server of Azure Storage into a step."""
    from azure.core.pipeline.transport import AioHttpTransport

    send = AioHttpTransport.send

    async def step(transport: Any, request: Any, **options: Any) -> Any:
        name = azure_operation(request)
        changes = request.method not in ("GET", "HEAD")
        steps.begins(name, changes)
        answer = await send(transport, request, **options)
        if changes:
            steps.is_done(name)
        return answer

    AioHttpTransport.send = step


def azure_operation(request: Any) -> str:
    """Return a name of an Azure request, such as ``PUT blocklist``."""
    query = parse_qs(urlsplit(request.url).query)
    return " ".join([request.method, *query.get("restype", ()), *query.get("comp", ())])


def on_s3(steps: Steps) -> None:
    """Turn every request to an S3 server into a step, whichever client sends it."""
    from aiobotocore.client import AioBaseClient

    request = AioBaseClient._make_api_call

    async def step(client: Any, operation: str, parameters: Any) -> Any:
        changes = not operation.startswith(("Get", "Head", "List"))
        steps.begins(operation, changes)
        answer = await request(client, operation, parameters)
        if changes:
            steps.is_done(operation)
        return answer

    AioBaseClient._make_api_call = step
