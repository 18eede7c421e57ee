"""Several S3 servers, and a server that is killed at a request of a batch."""

import contextlib
import http.client
import random
import statistics
import threading
import time
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pytest

from tests.campaigns.stores.go_servers import PROGRAMS, GoServer
from tests.support.http_proxy import PER_HOP, Answer, HttpProxy, Request
from tests.support.restarted_query import RestartedQuery
from tests.support.s3_server import S3Server
from tests.support.server_process import ServerProcess

MOTO = "moto"
KILLED = tuple(PROGRAMS)
"""The servers whose objects survive a kill."""

S3_SERVERS = (MOTO, *(pytest.param(name, marks=pytest.mark.long) for name in KILLED))
"""Test parameters with each server."""


WRONG_KEYS = ({"key": "AKIANOBODY"}, {"secret": "another-secret-of-nobody"})
"""Options with credentials that a server refuses."""


def s3_server(name: str, folder: Path) -> S3Server | GoServer:
    """Return a server, not yet started. Skip the test if it can't be built."""
    return S3Server(folder / "log") if name == MOTO else go_server(name, folder)


def go_server(name: str, folder: Path) -> GoServer:
    """Return a server whose objects survive a kill, not yet started. Skip the test if it can't be built."""
    if why := PROGRAMS[name].install():
        pytest.skip(why)
    return GoServer(PROGRAMS[name], folder)


SELDOM = 10
"""Every how many requests a server is killed if it stays away: clients wait longer and longer for it."""


class Way(Enum):
    """When the server is killed: before a request reaches it, while it works on it, or before its reply arrives."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


STRIKES = [*((way, 0) for way in Way), (Way.BEFORE, 5)]
"""When the server is killed, and how many further requests find it away."""


class StruckServer(HttpProxy):
    """A proxy in front of a server. It kills the server at one request, and restarts it.

    Attributes:
        took_s: the duration of each request.
    """

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.endpoint_url)
        self._server_process = server
        self._due: tuple[int, Way, int] | None = None
        self.took_s: list[float] = []

    def strike(self, number: int, way: Way, lost: int = 0) -> None:
        """Kill the server at the request that follows ``number`` others. The next ``lost`` requests find it away."""
        self._due = len(self.requests) + number, way, lost

    @property
    def has_struck(self) -> bool:
        return self._due is None

    def _pass_on(self, request: Request) -> Answer | None:
        with self._one_at_a_time:
            number = len(self.requests)
            self.requests.append(request)
            if self._due is None or number < self._due[0]:
                started = time.perf_counter()
                answer = self._forwarded(request)
                self.took_s.append(time.perf_counter() - started)
                return answer
            at, way, lost = self._due
            if number == at:
                self._kill(request, way)
            if number >= at + lost:
                self._server_process.start()
                self._due = None
            return None

    def _kill(self, request: Request, way: Way) -> None:
        if way is Way.AFTER:
            self._forwarded(request)
        if way is not Way.DURING:
            self._server_process.kill()
            return
        usual_s = statistics.median(self.took_s)
        timer = threading.Timer(random.uniform(0, 1.5 * usual_s), self._server_process.kill)  # noqa: S311
        timer.start()
        self._forwarded(request)
        timer.join()

    def _forwarded(self, request: Request) -> Answer | None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._forward(request, PER_HOP)
        return None


def strike_requests(proxy: StruckServer, query: RestartedQuery, way: Way, lost: int) -> list[str]:
    """Kill the server once per batch, each time at a later request. Calls with all three ways together hit each
    request.

    Returns:
        The values of all batches.
    """
    written: list[str] = []

    def run(batch_id: int) -> None:
        tasks = [[f"{batch_id} {task} {n}" for n in range(3)] for task in range(2)]
        query.run(batch_id, [pa.record_batch({"value": task}) for task in tasks])
        written.extend(value for task in tasks for value in task)

    run(0)
    before = len(proxy.requests)
    run(1)
    usual = len(proxy.requests) - before
    step = len(Way) if lost == 0 else SELDOM
    for batch_id, number in enumerate(range([*Way].index(way), usual, step), 2):
        proxy.strike(number, way, lost)
        run(batch_id)
        assert proxy.has_struck, f"a batch has fewer than {number} requests"
    return sorted(written)
