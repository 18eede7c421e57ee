"""Prometheus and promtool, built by Go from its module proxy."""

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.go_program import GoProgram
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess

VERSION, GO_VERSION = "v0.316.0", "1.26.7"
NO_DISCOVERY = "remove_all_sd"
"""A build tag that leaves out service discovery, whose cloud clients are most of the build."""

BUILD_AT_MOST_S = 3600
"""The timeout of the test that builds both. ``promtool`` alone takes three minutes on one core, and downloads 1 GB."""


def go_program(name: str) -> GoProgram:
    """Return the build of ``promtool`` or ``prometheus``."""
    return GoProgram(f"github.com/prometheus/prometheus/cmd/{name}", VERSION, GO_VERSION, tags=NO_DISCOVERY)


def program(name: str) -> str:
    """Return the path of ``promtool`` or ``prometheus``: the machine's, or else one that was built. Skip the test if
    there is neither."""
    built = go_program(name).path
    if found := shutil.which(name) or (str(built) if built.exists() else None):
        return found
    pytest.skip(
        f"there is no {name}: install it (on Debian: apt install prometheus), or build it, in some minutes:"
        " make test-all ARGS='-k go_builds_prometheus'"
    )


def promtool(*arguments: object, folder: Path) -> tuple[int, str]:
    """Run ``promtool`` in a folder. Return its exit code and its output."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


class Prometheus(ServerProcess):
    """A server that scrapes one exporter every second, with rules from a file."""

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        self._folder = folder
        self._port = free_port()
        scrape = {"job_name": "twopc", "static_configs": [{"targets": [target]}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": [str(rules)], "scrape_configs": [scrape]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def start(self) -> None:
        command = [program("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}"]
        self._start("prometheus", command, self._folder / "prometheus.log", 60)

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        alerts = self._ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def ask(self, expression: str) -> list[float]:
        """Return the current values of an expression."""
        query = urllib.parse.urlencode({"query": expression})
        return [float(each["value"][1]) for each in self._ask(f"query?{query}")["result"]]

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{what}", timeout=10) as answer:
            return json.load(answer)["data"]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("vector(1)"))
        return False
