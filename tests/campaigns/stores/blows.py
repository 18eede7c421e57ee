"""Cases in which a store's server, its writer, or both are killed during completions."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from aiobotocore.client import AioBaseClient

from tests.campaigns.stores.case import (
    Campaign,
    concluded,
    finish_and_compare,
    in_a_process,
    is_of_a_kill,
    note,
    noted,
)
from tests.campaigns.stores.contents import Findings
from tests.campaigns.stores.go_servers import PROGRAMS, GoServer
from tests.campaigns.stores.places import Place, new_place
from tests.campaigns.stores.query import FILES, run
from twopc.errors import OperatorRequired

VICTIMS = (("server",), ("writer",), ("server", "writer"))
"""The victims of successive cases, in turn."""

LATEST = 1.25
"""The latest time of a blow, in multiples of the usual duration of a completion."""

STARTS_AT_MOST = 4
"""The maximum number of starts of the query in a case, after errors and after stops."""


@dataclass(frozen=True)
class Blow:
    """A kill: its victims, the index of the completion that it hits, and the delay after that request was sent."""

    victims: tuple[str, ...]
    completion: int
    after_s: float


NO_BLOW = Blow((), -1, 0.0)


@dataclass(frozen=True)
class Struck:
    """The result of a case.

    Attributes:
        killed: the victims that were killed.
        in_flight: the number of completions without an answer at that moment.
        stops: how often the query stopped for an operator.
        mended: the number of uploads that the operator repaired.
    """

    number: int
    killed: tuple[str, ...]
    in_flight: int
    stops: int
    mended: int
    findings: Findings


def cases_for(kills: int) -> int:
    """Return the number of cases that kill the server and the writer ``kills`` times each. Two of three cases kill the
    server, and two of three the writer."""
    return math.ceil(kills * len(VICTIMS) / 2)


def usual_completion_s(campaign: Campaign) -> tuple[float, list[str]]:
    """Return the usual duration of a completion in an undisturbed run, and that run's failures."""
    undisturbed, durations_s = _case(campaign, -1, NO_BLOW)
    return statistics.median(durations_s or [0.0]), undisturbed.findings.told


def struck(campaign: Campaign, seed: int, usual_s: float, number: int) -> Struck:
    """Run case ``number``. The seed determines its blow, except for its exact time."""
    chance = random.Random(f"{campaign.store} {seed} {number}")  # noqa: S311  # it chooses when to strike
    victims = VICTIMS[number % len(VICTIMS)]
    blow = Blow(victims, chance.randrange(FILES), chance.uniform(0, LATEST * usual_s))
    return _case(campaign, number, blow)[0]


def _case(campaign: Campaign, number: int, blow: Blow) -> tuple[Struck, list[float]]:
    place = new_place(campaign.store, campaign.folder, {})
    of_server = place.work.with_suffix(".server")
    starts = stops = mended = 0
    with GoServer(PROGRAMS[campaign.store], of_server) as server:
        place = replace(place, server=server.storage_options)
        status = in_a_process(lambda: _write(place, blow, server.pid), server.restart_if_killed)
        of_writer = status
        while starts < STARTS_AT_MOST and (starts == 0 or noted(place, "error")):
            server.restart_if_killed()
            if (error := noted(place, "error")) and error["needs_operator"]:
                in_a_process(lambda: note(place, "mended", server.mend(error["text"])))
                stops, mended = stops + 1, mended + (noted(place, "mended") or 0)
            status = in_a_process(lambda: _tried(place, lambda: finish_and_compare(place)), server.restart_if_killed)
            starts += 1
    durations_s = noted(place, "durations") or []
    strike = noted(place, "strike") or {"killed": [], "in_flight": 0}
    killed = (*strike["killed"], *(("writer",) if is_of_a_kill(of_writer) else ()))
    error = noted(place, "error")
    findings = concluded(place, status)
    if of_writer and not is_of_a_kill(of_writer):
        findings.told.append(f"the writer ended with status {of_writer}")
    if error:
        findings.told.append(f"after {starts} starts: {error['text']}")
    if not findings.told:
        shutil.rmtree(of_server)
    return Struck(number, killed, strike["in_flight"], stops, mended, findings), durations_s


def _write(place: Place, blow: Blow, server_pid: int) -> None:
    place.make()
    strike = _Strike(place, blow, server_pid)
    strike.patch()
    _tried(place, lambda: run(place))
    note(place, "durations", strike.durations_s)


def _tried(place: Place, call: Callable[[], object]) -> None:
    """Make a call and record its error. The error is not a failure of the case yet, because the query is restarted."""
    logging.disable()
    note(place, "error", None)
    try:
        call()
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        note(place, "error", {"text": text, "needs_operator": isinstance(error, OperatorRequired)})


@dataclass
class _Strike:
    """Counts the completions of this process, and kills during one of them.

    Attributes:
        durations_s: the duration of each completion, including the client's own retries.
    """

    place: Place
    blow: Blow
    server_pid: int
    durations_s: list[float] = field(default_factory=list)
    begun: int = 0
    in_flight: int = 0

    def patch(self) -> None:
        request = AioBaseClient._make_api_call

        async def counted(client: Any, operation: str, parameters: Any) -> Any:
            if operation != "CompleteMultipartUpload":
                return await request(client, operation, parameters)
            if self.begun == self.blow.completion:
                threading.Timer(self.blow.after_s, self._fall).start()
            self.begun += 1
            self.in_flight += 1
            started = time.perf_counter()
            try:
                return await request(client, operation, parameters)
            finally:
                self.in_flight -= 1
                self.durations_s.append(time.perf_counter() - started)

        AioBaseClient._make_api_call = counted

    def _fall(self) -> None:
        in_flight, killed = self.in_flight, list[str]()
        if "server" in self.blow.victims:
            os.kill(self.server_pid, signal.SIGKILL)
            killed.append("server")
        note(self.place, "strike", {"killed": killed, "in_flight": in_flight})
        if "writer" in self.blow.victims:
            os.kill(os.getpid(), signal.SIGKILL)
