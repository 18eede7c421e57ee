"""Create a file whole or not at all, and never over another one, where that is possible."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from twopc.errors import ConfigurationError
from twopc.log.store import make_folder, sync_folder

CREATING = ("memory", "s3")
"""Protocols of which fsspec's ``mode="create"`` is known to create a whole object, or to fail where there is one."""

_ASIDE = ".aside"
_ASIDE_LIVES_S = 3600.0
"""How long a writer may take from its first byte to its link. Then what it wrote aside counts as left behind."""


def put_if_absent(fs: Any, path: str, data: bytes) -> bool:
    """Create ``path`` with ``data``, durable and whole.

    Returns:
        False where ``path`` exists: nothing was changed. It may be ours, if a reply was lost.

    Raises:
        OSError: it may be there or not. Repeating the call is safe.
    """
    try:
        if isinstance(fs, LocalFileSystem):
            _link_into_place(Path(path), data)
        else:
            fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def check_store(fs: Any) -> None:
    """Raises ConfigurationError where a file can't be put if absent: a zombie could overwrite a newer process's."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if not isinstance(fs, LocalFileSystem) and not set(protocols) & set(CREATING):
        raise ConfigurationError(
            f"a log of complete batches can't be kept on {protocols[0]!r}, where it is not known that a file can be"
            f" created whole, and only if it is absent: only on local disks and on {', '.join(CREATING)}. Nothing was"
            " written. Switch the log off for this sink."
        )


def make_durable(fs: Any, folder: str) -> None:
    """What was put into ``folder`` survives a power cut, also what another process died over before its sync."""
    if isinstance(fs, LocalFileSystem):
        sync_folder(Path(folder))


def remove_asides_of_the_killed(fs: Any, folder: str) -> None:
    """Remove what writers of ``folder`` wrote aside and were killed over. A failure costs room, nothing else.

    Two machines' clocks: a writer that is slower than the hour by them fails, and repeats its put when it is restarted.
    """
    if not isinstance(fs, LocalFileSystem):
        return
    for aside in Path(folder).glob(f".*{_ASIDE}"):
        with contextlib.suppress(OSError):
            if aside.stat().st_mtime < time.time() - _ASIDE_LIVES_S:
                aside.unlink()


def _link_into_place(path: Path, data: bytes) -> None:
    """A link fails where the name exists, and what it names was synced before: half a file can't be."""
    make_folder(path.parent)
    aside = path.parent / f".{uuid.uuid4().hex}{_ASIDE}"
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    finally:
        with contextlib.suppress(OSError):  # what is left of it hides from every reader
            aside.unlink(missing_ok=True)
        sync_folder(path.parent)
