"""The distributions of this project: their sources, and their builds by uv."""

import os
import subprocess
import zipfile
from collections.abc import Sequence
from email import message_from_string
from email.message import Message
from pathlib import Path

from tests.support.pages import ROOT

PLUGINS = {f"twopc_{plugin.name.replace('-', '_')}": plugin for plugin in sorted((ROOT / "plugins").iterdir())}

SOURCES = {"twopc_core": ROOT, **PLUGINS}
"""Distribution, in the spelling of its file names → its source folder."""

PACKAGES = {"twopc_core": "twopc", **{name: name for name in PLUGINS}}
"""Distribution → its import package."""

_SHOWN = 2000  # characters of a failed command's output


class CommandFailed(SystemExit):
    """A command failed. If uncaught, it ends the process with a message and exit code 1."""


def call(*command: object, folder: Path = ROOT) -> str:
    """Return the output of a command, run without this process's Python environment.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    words = [str(part) for part in command]
    called = subprocess.run(words, cwd=folder, env=without_python(), capture_output=True, text=True, check=False)
    if called.returncode:
        told = (called.stderr.strip() or called.stdout.strip())[-_SHOWN:]
        raise CommandFailed(f"{Path(words[0]).name} {words[1]} failed with exit code {called.returncode}: {told}")
    return called.stdout


def without_python() -> dict[str, str]:
    """Return this process's environment variables, without those that lead to its packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def build(uv: str, folder: Path, *options: str, source: Path = ROOT) -> None:
    """Build into ``folder``. Without ``--wheel`` among the options, uv builds each wheel from its sdist. Raises
    CommandFailed."""
    call(uv, "build", "--quiet", *options, "--out-dir", folder, source)


def locked(uv: str, *options: str) -> str:
    """Return the locked third-party requirements, one per line, with their markers. Raises CommandFailed."""
    export: Sequence[str] = ("export", "--quiet", "--locked", "--all-packages", "--all-extras", "--no-emit-workspace")
    return call(uv, *export, "--no-hashes", "--no-annotate", "--no-header", *options)


def wheel_of(name: str, folder: Path) -> Path:
    [wheel] = folder.glob(f"{name}-*.whl")
    return wheel


def sdist_of(name: str, folder: Path) -> Path:
    [sdist] = folder.glob(f"{name}-*.tar.gz")
    return sdist


def metadata_of(name: str, folder: Path) -> Message:
    with zipfile.ZipFile(wheel_of(name, folder)) as wheel:
        [found] = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(found).decode())
