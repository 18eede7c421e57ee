"""Cases in which the server of a place, its writer, or both are killed during commits."""

import contextlib
import logging
import math
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns.every_step.case import concluded, finish_and_compare
from tests.campaigns.every_step.place import Findings, Place, Places, Server
from tests.campaigns.every_step.processes import in_a_process, is_of_a_kill, note, noted
from tests.campaigns.every_step.query import run
from tests.campaigns.every_step.steps import around
from twopc.errors import OperatorRequired

SERVER_AND_WRITER = (("server",), ("writer",), ("server", "writer"))
WRITER = (("writer",),)
"""The victims of successive cases, in turn: of a place with a server, and of one without."""

LATEST = 1.25
"""The latest time of a blow, in multiples of the usual duration of a commit."""

STARTS_AT_MOST = 4
"""The maximum number of starts of the query in a case, after errors and after stops."""


@dataclass(frozen=True)
class Blow:
    """A kill: its victims, the index of the commit that it hits, and the delay after the request was sent."""

    victims: tuple[str, ...]
    commit: int
    after_s: float


NO_BLOW = Blow((), -1, 0.0)


@dataclass(frozen=True)
class Usual:
    """An undisturbed run.

    Attributes:
        commits: the number of its commits.
        commit_s: the median duration of a commit.
        told: its failures.
    """

    commits: int
    commit_s: float
    told: list[str]


@dataclass(frozen=True)
class Struck:
    """The result of a case.

    Attributes:
        killed: the victims that were killed.
        in_flight: the number of commits without an answer at that moment.
        stops: how often the query stopped for an operator.
        mended: the number of repairs by the operator.
    """

    number: int
    killed: tuple[str, ...]
    in_flight: int
    stops: int
    mended: int
    findings: Findings


@dataclass
class Strike:
    """Counts the commits of this process, and kills during one of them.

    Attributes:
        work: the folder of the case.
        server_pid: the server; 0 if there is none.
        durations_s: the duration of each commit, including the client's own retries.
    """

    work: Path
    blow: Blow
    server_pid: int
    durations_s: list[float] = field(default_factory=list)
    begun: int = 0
    in_flight: int = 0
    timer: threading.Timer | None = None

    @contextlib.contextmanager
    def a_commit(self) -> Iterator[None]:
        """Around the request of a commit."""
        if self.begun == self.blow.commit:
            self.timer = threading.Timer(self.blow.after_s, self._fall)
            self.timer.start()
        self.begun += 1
        self.in_flight += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            self.in_flight -= 1
            self.durations_s.append(time.perf_counter() - started)

    def watch(self, client: Any, method: str, is_commit: Callable[..., bool] = lambda *_, **__: True) -> None:
        """Have the calls of a method counted that commit something. ``is_commit`` gets the arguments of each."""
        around(
            client, method, lambda *request, **_: self.a_commit() if is_commit(*request) else contextlib.nullcontext()
        )

    def wait(self) -> None:
        """Let the blow fall that is due: the process may have ended its work before."""
        if self.timer is not None:
            self.timer.join()

    def _fall(self) -> None:
        in_flight, killed = self.in_flight, list[str]()
        if "server" in self.blow.victims:
            os.kill(self.server_pid, signal.SIGKILL)
            killed.append("server")
        note(self.work, "strike", {"killed": killed, "in_flight": in_flight})
        if "writer" in self.blow.victims:
            os.kill(os.getpid(), signal.SIGKILL)


def cases_for(victims: Sequence[tuple[str, ...]], kills: int) -> int:
    """Return the number of cases that kill each of the victims ``kills`` times."""
    times = Counter(name for together in victims for name in together)
    return math.ceil(kills * len(victims) / min(times.values()))


def usual(places: Places) -> Usual:
    """Return what an undisturbed run does."""
    undisturbed, durations_s = _case(places, -1, NO_BLOW)
    return Usual(len(durations_s), statistics.median(durations_s or [0.0]), undisturbed.findings.told)


def struck(places: Places, seed: int, usual: Usual, number: int) -> Struck:
    """Run case ``number``. The seed determines its blow, except for its exact time."""
    chance = random.Random(f"{places.name} {seed} {number}")  # noqa: S311  # it chooses when to strike
    victims = places.victims[number % len(places.victims)]
    blow = Blow(victims, chance.randrange(usual.commits), chance.uniform(0, LATEST * usual.commit_s))
    return _case(places, number, blow)[0]


def _case(places: Places, number: int, blow: Blow) -> tuple[Struck, list[float]]:
    starts = stops = mended = 0
    with places.with_server() as (place, server):
        work = place.work
        status = in_a_process(lambda: _write(place, blow, server.pid), server.restart_if_killed)
        of_writer = status
        while starts < STARTS_AT_MOST and (starts == 0 or noted(work, "error")):
            server.restart_if_killed()
            if (error := noted(work, "error")) and error["needs_operator"]:
                mended += _mended(work, server, error["text"])
                stops += 1
            status = in_a_process(lambda: _tried(work, lambda: finish_and_compare(place)), server.restart_if_killed)
            starts += 1
        durations_s = noted(work, "durations") or []
        strike = noted(work, "strike") or {"killed": [], "in_flight": 0}
        killed = (*strike["killed"], *(("writer",) if is_of_a_kill(of_writer) else ()))
        error = noted(work, "error")
    findings = concluded(place, status)
    if of_writer and not is_of_a_kill(of_writer):
        findings.told.append(f"the writer ended with status {of_writer}")
    if error:
        findings.told.append(f"after {starts} starts: {error['text']}")
    return Struck(number, killed, strike["in_flight"], stops, mended, findings), durations_s


def _mended(work: Path, server: Server, error: str) -> int:
    in_a_process(lambda: note(work, "mended", server.mend(error)))
    return noted(work, "mended") or 0


def _write(place: Place, blow: Blow, server_pid: int) -> None:
    place.make()
    strike = Strike(place.work, blow, server_pid)
    place.watch_commits(strike)
    _tried(place.work, lambda: run(place))
    note(place.work, "durations", strike.durations_s)
    strike.wait()


def _tried(work: Path, call: Callable[[], object]) -> None:
    """Make a call and record its error. The error is not a failure of the case yet, because the query is restarted."""
    logging.disable()
    note(work, "error", None)
    try:
        call()
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        note(work, "error", {"text": text, "needs_operator": isinstance(error, OperatorRequired)})
