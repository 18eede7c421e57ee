"""One case: a writer is killed at one moment, and a second process finishes its work and compares the contents."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import twopc
from tests.campaigns.stores.contents import Findings, look
from tests.campaigns.stores.foreign import plant, present
from tests.campaigns.stores.places import SEAMS, Place, new_place
from tests.campaigns.stores.query import finish, run
from tests.campaigns.stores.steps import NEVER, Killed, Steps, die, kill
from twopc import durable_files

AT_MOST_S = 60
"""The longest time of a process. A process that hangs is ended and reported."""

LOOKS_EVERY_S = 0.01


@dataclass(frozen=True)
class Campaign:
    """The store and the folder that all cases share."""

    store: str
    folder: Path
    server: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The result of a case. ``was_killed`` is whether the writer reached the moment and was killed there."""

    moment: int
    was_killed: bool
    findings: Findings


def moments(campaign: Campaign) -> tuple[int, list[str], list[str]]:
    """Return the number of steps of an undisturbed run, its moments, and its failures."""
    place = new_place(campaign.store, campaign.folder, campaign.server)

    def count() -> None:
        steps = _begin(place, NEVER)
        note(place, "moments", [steps.steps, steps.moments])
        finish_and_compare(place)

    status = in_a_process(count)
    steps, names = noted(place, "moments") or (0, [])
    return steps, names, concluded(place, status).told


def killed_at(campaign: Campaign, moment: int) -> Outcome:
    """Kill a writer at ``moment``, finish its work, and compare the contents."""
    place = new_place(campaign.store, campaign.folder, campaign.server)
    if place.survives:
        status = in_a_process(lambda: _begin(place, moment))
        was_killed = is_of_a_kill(status)
        ended = (0 if was_killed else status) or in_a_process(lambda: finish_and_compare(place))
    else:
        ended = in_a_process(lambda: _both(place, moment))
        was_killed = noted(place, "killed") is not None
    return Outcome(moment, was_killed, concluded(place, ended))


def concluded(place: Place, status: int) -> Findings:
    """Return the findings of the second process. Keep the local files if anything is wrong."""
    found = noted(place, "findings")
    findings = Findings(**found) if found else Findings()
    if status or found is None:
        findings.told.append(f"a process ended with status {status}; its files are in {place.work}")
    if not findings.told:
        shutil.rmtree(place.work)
    return findings


def _both(place: Place, moment: int) -> None:
    """Run both parts in one process, for a store that lives in the process. The writer ends by an exception."""
    try:
        _begin(place, moment)
    except Killed:
        note(place, "killed", True)
    finish_and_compare(place)


def _begin(place: Place, moment: int) -> Steps:
    """Write, as the process that is killed."""
    place.make()
    plant(place)
    note(place, "foreign", present(place))
    steps = Steps(moment, kill if place.survives else die)
    SEAMS[place.store](steps)
    twopc.register_observer(steps)
    try:
        run(place)
    finally:
        twopc.unregister_observer(steps)
        steps.forget()
    return steps


def finish_and_compare(place: Place) -> None:
    """Look, finish the work and look again, as the second process."""
    foreign = noted(place, "foreign") or {}
    findings = Findings()
    findings.whole_batches("after the kill", look(place, foreign))
    _let_an_hour_pass(place)
    finish(place)
    after = look(place, foreign)
    findings.whole_batches("at the end", after)
    findings.all_there(after)
    findings.nothing_left(place, after, foreign)
    note(place, "findings", asdict(findings))


def _let_an_hour_pass(place: Place) -> None:
    """Make temporary files of a killed process old enough to be removed. They are kept for an hour, because their
    writer may only be slow. On a disk, set the files' times; other stores set the times themselves, so change the
    limit."""
    for pattern in ("*.aside", "*.probe"):
        for path in place.work.rglob(pattern):
            os.utime(path, (time.time() - 7200,) * 2)
    if place.store != "local":
        durable_files._ASIDE_LIVES_S = -1


def note(place: Place, name: str, value: object) -> None:
    (place.work / f"{name}.noted").write_text(json.dumps(value))


def noted(place: Place, name: str) -> Any:
    path = place.work / f"{name}.noted"
    return json.loads(path.read_text()) if path.exists() else None


def is_of_a_kill(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def in_a_process(call: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> int:
    """Run ``call`` in a forked process, which has all imports done. Return its status, as from ``os.wait``. Call
    ``meanwhile`` repeatedly until it ends.

    Upholds: a process that forks has created no file system and no thread.
    """
    child = os.fork()
    if child:
        while meanwhile and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            meanwhile()
            time.sleep(LOOKS_EVERY_S)
        return os.waitpid(child, 0)[1]
    try:
        signal.alarm(AT_MOST_S)
        call()
    except BaseException:  # noqa: BLE001  # the status reports it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
