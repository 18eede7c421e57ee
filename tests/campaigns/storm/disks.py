"""Disks that can be filled: one tmpfs each, in a mount namespace that contains only the storm's processes.

No other process sees the mounts, and they disappear with the last process of the namespace, however it ends. Root may
create such a namespace, and so may other users where the system permits user namespaces.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

SIZE_MB = 128
NAMES = 10_000
_INSIDE = "TWOPC_STORM_NAMESPACE"
_NAMESPACES = (["--mount"], ["--mount", "--map-root-user"])

Lack = Literal["bytes", "names"]
LACKS: tuple[Lack, ...] = ("bytes", "names")
"""The resources that a full disk can lack: room for data, or for names (tmpfs counts a hard link as a name)."""


def enter_namespace(arguments: Sequence[str]) -> str | None:
    """Replace this process by the same program in a namespace where it may mount.

    Returns:
        None within the namespace; otherwise the reason why none can be created.
    """
    if _INSIDE in os.environ:
        return None
    command, obstacle = in_namespace()
    if command:
        program = [*command, sys.executable, "-m", "tests.campaigns", "storm", *arguments]
        os.execve(program[0], program, {**os.environ, _INSIDE: "1"})  # noqa: S606
    return obstacle


def in_namespace() -> tuple[list[str], str]:
    """Return a command prefix that runs a program in a namespace where it may mount. If there is none, return an empty
    prefix and the reason."""
    unshare, obstacle = shutil.which("unshare"), "the command unshare (util-linux) is not installed"
    for options in _NAMESPACES if unshare else ():
        command = [str(unshare), *options]
        with tempfile.TemporaryDirectory() as folder:
            trial = subprocess.run([*command, *_mount(Path(folder))], capture_output=True, text=True, check=False)
        if trial.returncode == 0:
            return command, ""
        obstacle = trial.stderr.strip()
    return [], obstacle


def _mount(folder: Path) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,nr_inodes={NAMES}", "tmpfs", str(folder)]


class Disk:
    """A small disk at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / ".filler"
        folder.mkdir(parents=True)
        subprocess.run(_mount(folder), check=True)

    @property
    def is_full(self) -> bool:
        return self._filler.exists()

    def fill(self, lack: Lack, names_left: int) -> None:
        """Fill the disk, except for ``names_left`` names. With one left, an entry is written aside but not linked."""
        self._filler.mkdir()
        taken = list(_until_full(self._take_bytes() if lack == "bytes" else self._take_names()))
        if lack == "names":
            for path in taken[:names_left]:
                path.unlink()

    def _take_bytes(self) -> Iterator[Path]:
        with (self._filler / "bytes").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
                yield Path(file.name)

    def _take_names(self) -> Iterator[Path]:
        number = 0
        while True:
            path = self._filler / str(number)
            path.touch()
            yield path
            number += 1

    def free(self) -> None:
        """Free the space if the disk is full."""
        shutil.rmtree(self._filler, ignore_errors=True)

    def keep(self, folder: Path) -> None:
        """Copy the contents to a folder that outlives the namespace."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)


def _until_full(taking: Iterator[Path]) -> Iterator[Path]:
    try:
        yield from taking
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
