"""Disks that can be filled: one tmpfs each, in a mount namespace that contains only the campaign's processes.

No other process sees the mounts, and they disappear with the last process of the namespace, however it ends. Root may
create such a namespace, and so may other users where the system permits user namespaces.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

SIZE = "size=50%,nr_inodes=1000000"
"""The limits of a disk: its share of the machine's memory, and its number of names. It only uses memory for written
data."""

_INSIDE = "TWOPC_DISKS_NAMESPACE"
_NAMESPACES = (["--mount"], ["--mount", "--map-root-user"])
_ATTEMPTS = 50

Lack = Literal["bytes", "names"]
LACKS: tuple[Lack, ...] = ("bytes", "names")
"""The resources that a full disk can lack: room for data, or for names (tmpfs counts a hard link as a name)."""


def enter_namespace(campaign: str, arguments: Sequence[str]) -> str | None:
    """Replace this process with the same campaign in a namespace where it may mount.

    Returns:
        None within the namespace; otherwise the reason why none can be created.
    """
    if _INSIDE in os.environ:
        return None
    command, obstacle = in_namespace()
    if command:
        program = [*command, sys.executable, "-m", "tests.campaigns", campaign, *arguments]
        os.execve(program[0], program, {**os.environ, _INSIDE: "1"})  # noqa: S606
    return obstacle


def in_namespace() -> tuple[list[str], str]:
    """Return a command prefix that runs a program in a namespace where it may mount. If there is none, return an empty
    prefix and the reason."""
    unshare, obstacle = shutil.which("unshare"), "the command unshare (util-linux) is not installed"
    for options in _NAMESPACES if unshare else ():
        command = [str(unshare), *options]
        with tempfile.TemporaryDirectory() as folder:
            trial = subprocess.run([*command, *_mount(Path(folder), SIZE)], capture_output=True, text=True, check=False)
        if trial.returncode == 0:
            return command, ""
        obstacle = trial.stderr.strip()
    return [], obstacle


def _mount(folder: Path, options: str) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]


class Disk:
    """A disk at ``folder``. It is filled by lowering its limit rather than by writing data, which would take memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_full = False
        folder.mkdir(parents=True)
        subprocess.run(_mount(folder, SIZE), check=True)

    def fill(self, lack: Lack, names_left: int = 0) -> None:
        """Leave no room for data, or for more than ``names_left`` names. With one name left, an entry's temporary file
        can be written but not linked."""
        failure = ""
        for _ in range(_ATTEMPTS):  # writing processes may have taken more since
            used = os.statvfs(self.folder)
            size = max(used.f_blocks - used.f_bfree, 1) * used.f_frsize
            names = used.f_files - used.f_ffree + names_left
            limit = f"size={size}" if lack == "bytes" else f"nr_inodes={names}"
            if not (failure := self._remount(limit)):
                self.is_full = True
                return
        raise OSError(f"the disk at {self.folder} could not be filled: {failure}")

    def free(self) -> None:
        """Free the space if the disk is full."""
        if failure := self._remount(SIZE):
            raise OSError(f"the disk at {self.folder} could not be freed: {failure}")
        self.is_full = False

    def _remount(self, options: str) -> str:
        """Return the error; empty if there is none."""
        done = subprocess.run(_mount(self.folder, f"remount,{options}"), capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    def keep(self, folder: Path) -> None:
        """Copy the contents to a folder that outlives the namespace."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
