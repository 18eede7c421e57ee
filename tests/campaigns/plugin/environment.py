"""An environment with this project's distributions from their wheels, and without its source."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.distributions import build, call, locked
from tests.support.pages import DOCS, ROOT, write_files


class Environment:
    """A new environment in ``folder``, with wheels only. The tests are copied beside it, away from the project's
    source.

    Args:
        folder: the working folder.
        uv: the uv that builds and installs.
        extras: the extras of our distributions, such as ``[s3]`` for ``twopc_files``.
        tools: additional requirements of the tests.
    """

    def __init__(self, folder: Path, uv: str, extras: Mapping[str, str], tools: Sequence[str]) -> None:
        self._uv = uv
        self._folder = folder
        self.python = folder / "environment" / "bin" / "python"
        self._extras, self._tools = extras, tools

    def make(self) -> None:
        """Build the wheels, install them, and copy the tests. Raises CommandFailed."""
        guide = self._folder / "guide"
        guide.mkdir(parents=True)
        write_files(DOCS / "write-your-own-sink.md", guide)
        wheels = self._folder / "wheels"
        build(self._uv, wheels, "--wheel", "--all-packages")
        build(self._uv, wheels, "--wheel", source=guide)
        constraints = self._folder / "constraints.txt"
        constraints.write_text(locked(self._uv), encoding="utf-8")
        call(self._uv, "venv", "--quiet", "--python", sys.executable, self._folder / "environment")
        ours = [self._requirement(wheel) for wheel in sorted(wheels.glob("*.whl"))]
        install = ("pip", "install", "--quiet", "--python", self.python, "--constraint", constraints)
        call(self._uv, *install, *ours, *self._tools, folder=self._folder)
        shutil.copytree(ROOT / "tests", self._folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self._folder)  # pytest's configuration
        (self._folder / "docs").mkdir()
        shutil.copy(DOCS / "without-spark.md", self._folder / "docs")  # its service is killed

    def _requirement(self, wheel: Path) -> str:
        name = wheel.name.partition("-")[0]
        return f"{name}{self._extras.get(name, '')} @ {wheel.as_uri()}"

    def run(self, *arguments: object) -> str:
        """Run the environment's Python. Return its output. Raises CommandFailed."""
        return call(self.python, *arguments, folder=self._folder)
