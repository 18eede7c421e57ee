"""Servers that all workers of a run share. The process that starts the run starts each of them once, on first use.

Servers that tests kill are not shared: each belongs to one worker.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from confluent_kafka import Producer

from tests.support import azurite_server, gcs_server
from tests.support.mariadb_server import MariaDbServer
from tests.support.once_per_run import Outcome
from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import S3Server
from twopc_kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from typing_extensions import Self


Start: TypeAlias = "Callable[[contextlib.ExitStack, Path], Any]"
"""Starts a server with its own folder, and returns the object to send to workers. The stack ends the server."""


def _kafka(ended: contextlib.ExitStack, folder: Path) -> KafkaBroker:  # it creates its own folder
    broker = ended.enter_context(KafkaBroker())
    # The first transactional id has Kafka create its transaction log, for which all transactional requests wait.
    Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "first"}).init_transactions(60)
    client = copy.copy(broker)
    client._process = None
    return client


def _postgres(ended: contextlib.ExitStack, folder: Path) -> PostgresServer:
    return ended.enter_context(PostgresServer(max_prepared_transactions=200, max_connections=300))


def _mariadb(ended: contextlib.ExitStack, folder: Path) -> MariaDbServer:
    return ended.enter_context(MariaDbServer(max_connections=500))


def _s3(ended: contextlib.ExitStack, folder: Path) -> S3Server:
    return ended.enter_context(S3Server(folder / "log"))


def _azurite(ended: contextlib.ExitStack, folder: Path) -> azurite_server.AzuriteServer:
    if obstacle := azurite_server.install():
        pytest.skip(obstacle)
    return ended.enter_context(azurite_server.AzuriteServer(folder))


def _gcs(ended: contextlib.ExitStack, folder: Path) -> gcs_server.GcsServer:
    return ended.enter_context(gcs_server.gcs_server(folder))


STARTS: Mapping[str, Start] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "s3": _s3,
    "azurite": _azurite,
    "gcs": _gcs,
}


class SharedServers:
    """The servers of a run. Workers request them through a socket at ``address``.

    Each server is started only once; the outcome holds for the whole run.
    """

    def __init__(self, starts: Mapping[str, Start] = STARTS) -> None:
        self._start_of = starts
        self._folder = Path(tempfile.mkdtemp(prefix="twopc-servers-"))
        self._listener = Listener(str(self._folder / "socket"))
        # The system ends a server together with the thread that started it. The pool's threads live until ``close``.
        self._starts = ThreadPoolExecutor(len(starts), "shared-server")
        self._outcomes: dict[str, Future[Outcome]] = {}
        self._lock = threading.Lock()
        self._ended = contextlib.ExitStack()
        threading.Thread(target=self._answer, name="shared-servers", daemon=True).start()

    @property
    def address(self) -> str:
        return str(self._listener.address)

    def outcome(self, name: str) -> Future[Outcome]:
        """Return the future outcome of a server. The first call starts the server."""
        with self._lock:
            if name not in self._outcomes:
                self._outcomes[name] = self._starts.submit(self._start, name)
            return self._outcomes[name]

    def _start(self, name: str) -> Outcome:
        folder = self._folder / name
        folder.mkdir()
        try:
            return Outcome(self._start_of[name](self._ended, folder))
        except pytest.skip.Exception as skipped:
            return Outcome(skipped=str(skipped))
        except BaseException:  # noqa: BLE001  # the requesting worker reports it
            return Outcome(failed=traceback.format_exc())

    def _answer(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                self.outcome(connection.recv()).add_done_callback(_sender(connection))
            except (OSError, EOFError):  # closed, or a worker has ended
                if not self._folder.exists():
                    return

    def close(self) -> None:
        """End every server."""
        self._starts.shutdown()
        self._ended.close()
        self._listener.close()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sender(connection: Connection) -> Callable[[Future[Outcome]], None]:
    def send(outcome: Future[Outcome]) -> None:
        with connection, contextlib.suppress(OSError):
            connection.send(outcome.result())

    return send
