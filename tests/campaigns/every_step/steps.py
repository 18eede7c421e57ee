"""The steps of a process: its calls into a store, and the events of its coordinator.

A moment is a point at which a process may be killed: before every step, and after every step that changes something. Of
consecutive steps that only read, just the first has a moment, because the store does not change between them.
"""

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fsspec.implementations.local import LocalFileSystem

import twopc
from tests.support.kills import moment_of
from twopc.events import Event

NEVER = 1 << 62


class Killed(BaseException):
    """Replaces the kill of a process whose store would die with it."""


def die() -> None:
    raise Killed


def around(owner: Any, name: str, context: Callable[..., AbstractContextManager[object]]) -> None:
    """Have each call of a method or function run in a context, until this process ends. ``context`` gets the arguments
    of the call. Calls of coroutines are awaited in it."""
    call = getattr(owner, name)

    @wraps(call)
    def inside(*arguments: Any, **keywords: Any) -> Any:
        with context(*arguments, **keywords):
            return call(*arguments, **keywords)

    @wraps(call)
    async def awaited_inside(*arguments: Any, **keywords: Any) -> Any:
        with context(*arguments, **keywords):
            return await call(*arguments, **keywords)

    setattr(owner, name, awaited_inside if iscoroutinefunction(call) else inside)


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
        self.begins(moment_of(event))

    @contextmanager
    def step(self, name: str, changes: bool = True) -> Iterator[None]:
        """Around one step. A step that raises an error has changed nothing."""
        self.begins(name, changes)
        yield
        if changes:
            self.is_done(name)

    def patch(self, owner: Any, reads: tuple[str, ...] = (), changes: tuple[str, ...] = ()) -> None:
        """Turn calls of a class or a module, ``owner``, into steps until this process ends."""
        for name in (*reads, *changes):
            self.patch_requests(owner, name, lambda *_, name=name, **__: (name, name in changes))

    def patch_requests(self, client: Any, method: str, described: Callable[..., tuple[str, bool]]) -> None:
        """Turn each request of a client into a step until this process ends. ``described`` gets the arguments of
        ``method``, and returns the name of the request and whether it changes anything."""
        around(client, method, lambda *request, **options: self.step(*described(*request, **options)))


def on_disk(steps: Steps) -> None:
    """Turn what creates, changes and removes files of a disk into steps, and what lists and reads them."""

    class Written(io.FileIO):
        def write(self, data: Any) -> int:
            with steps.step("write"):
                return super().write(data)

    def stepping(opened: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if mode not in ("xb", "wb"):
                return opened(file, mode, *arguments, **keywords)
            with steps.step("create"):
                written = Written(file, mode)
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

    def described(_: object, request: Any, **__: object) -> tuple[str, bool]:
        return azure_operation(request), request.method not in ("GET", "HEAD")

    steps.patch_requests(AioHttpTransport, "send", described)


def azure_operation(request: Any) -> str:
    """Return a name of an Azure request, such as ``PUT blocklist``."""
    query = parse_qs(urlsplit(request.url).query)
    return " ".join([request.method, *query.get("restype", ()), *query.get("comp", ())])


def on_s3(steps: Steps) -> None:
    """Turn every request to an S3 server into a step, whichever client sends it."""
    from aiobotocore.client import AioBaseClient

    def described(_: object, operation: str, __: object) -> tuple[str, bool]:
        return operation, not operation.startswith(("Get", "Head", "List"))

    steps.patch_requests(AioBaseClient, "_make_api_call", described)
