"""kfake: three brokers that share no code with Apache Kafka, built by Go from ``tests/support/kfake``."""

import hashlib
import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.support.go_program import GoProgram
from tests.support.kills import bound
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess

BROKERS = 3
START_TIMEOUT_S = 30.0

_SOURCE = Path(__file__).with_name("kfake")
_VERSION = hashlib.sha256(b"".join((_SOURCE / name).read_bytes() for name in ("main.go", "go.sum"))).hexdigest()[:12]
PROGRAM = GoProgram("kfake", _VERSION, "1.26", source=_SOURCE)


class Kfake(ServerProcess):
    """A cluster with the topic ``orders``, which has two partitions.

    Args:
        folder: the folder for its output.
        without: the API keys of requests that it does not support.
    """

    topic = "orders"

    def __init__(self, folder: Path, without: str = "") -> None:
        self._log = folder / "kfake.log"
        ports = [free_port() for _ in range(BROKERS)]
        self.servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._faults = f"127.0.0.1:{free_port()}"
        self._options = ["-ports", ",".join(map(str, ports)), "-faults", self._faults, "-without", without]

    def start(self) -> None:
        """Start the cluster, or skip the test if it can't be built."""
        try:
            obstacle = PROGRAM.install()
        except subprocess.CalledProcessError as failed:
            obstacle = f"Go {PROGRAM.go} or later and its module proxy build kfake: {failed}"
        if obstacle:
            pytest.skip(obstacle)
        command = bound(str(PROGRAM.path), *self._options)
        self._start("kfake", command, self._log, START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            self.happened()
        except OSError:
            return False
        return True

    def happened(self) -> dict[str, int]:
        """Return how many responses were ``lost``, ``failed`` and ``delayed``."""
        return json.loads(self._ask("happened"))  # type: ignore[no-any-return]

    def lose(self, key: int, times: int) -> None:
        """Lose the responses to the next requests of this API key. The requests take effect."""
        self._ask("lose", key=key, times=times)

    def fail(self, key: int, times: int, code: int) -> None:
        """Respond to the next requests of this API key with an error code. The requests have no effect."""
        self._ask("fail", key=key, times=times, value=code)

    def delay(self, key: int, times: int, ms: int) -> None:
        """Delay the next requests of this API key."""
        self._ask("delay", key=key, times=times, value=ms)

    def move(self) -> None:
        """Move transactional ids to other coordinators, and partitions to other leaders."""
        self._ask("move")

    def _ask(self, path: str, **values: int) -> bytes:
        url = f"http://{self._faults}/{path}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
