"""The cache folder for downloads, to which folders are added atomically."""

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
    """Return `$XDG_CACHE_HOME/twopc`, or `~/.cache/twopc` if the variable is unset or empty."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "twopc"


def publish(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make sure that the folder `target` exists: fill a temporary folder, then rename it.

    So an interrupted download never looks like a finished one. Processes that need the same target wait for
    the first of them and use its result.

    Args:
        target: The folder to create; left as it is if it exists.
        fill: Puts the contents into the empty folder that it is given. Its errors are passed on.

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
                aside.chmod(0o755)  # mkdtemp sets 0700, but a cache may be shared
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        # The kernel releases the lock when its holder dies in any way, so there are no stale locks.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
