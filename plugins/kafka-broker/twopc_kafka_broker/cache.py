"""The folder in which downloads are kept, and how something gets into it whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/twopc`, or `~/.cache/twopc` where that variable is unset or empty."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "twopc"


def publish(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make sure that the folder `target` exists, having it filled aside and renamed into place.

    So an interrupted download never looks like a finished one. Processes that want the same target wait for
    the first of them and use its result.

    Args:
        target: The folder to make; left alone if it is there.
        fill: Puts the contents into the empty folder that it is given. What it raises is passed on.

    Returns:
        `target`.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                fill(aside)
                aside.chmod(0o755)  # mkdtemp's 0700 would keep others out of a cache that may be shared
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        # Freed by the system when its holder dies, however it dies: no stale lock to clear away.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
