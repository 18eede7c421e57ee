"""One case: a writer is killed at one moment, and a second process finishes its work and compares the contents."""

import shutil
from dataclasses import asdict, dataclass

import twopc
from tests.campaigns.every_step.place import Findings, Place, Places
from tests.campaigns.every_step.processes import in_a_process, is_of_a_kill, note, noted
from tests.campaigns.every_step.query import finish, run
from tests.campaigns.every_step.steps import NEVER, Killed, Steps, die
from tests.support.kills import kill_this_process


@dataclass(frozen=True)
class Outcome:
    """The result of a case. ``was_killed`` is whether the writer reached the moment and was killed there."""

    moment: int
    was_killed: bool
    findings: Findings


def moments(places: Places) -> tuple[int, list[str], list[str]]:
    """Return the number of steps of an undisturbed run, its moments, and its failures."""
    place = places.new()

    def count() -> None:
        steps = _begin(place, NEVER)
        note(place.work, "moments", [steps.steps, steps.moments])
        finish_and_compare(place)

    status = in_a_process(count)
    steps, names = noted(place.work, "moments") or (0, [])
    return steps, names, concluded(place, status).told


def killed_at(places: Places, moment: int) -> Outcome:
    """Kill a writer at ``moment``, finish its work, and compare the contents."""
    place = places.new()
    if place.survives:
        status = in_a_process(lambda: _begin(place, moment))
        was_killed = is_of_a_kill(status)
        ended = (0 if was_killed else status) or in_a_process(lambda: finish_and_compare(place))
    else:
        ended = in_a_process(lambda: _both(place, moment))
        was_killed = noted(place.work, "killed") is not None
    return Outcome(moment, was_killed, concluded(place, ended))


def concluded(place: Place, status: int) -> Findings:
    """Return the findings of the second process. Keep the local files if anything is wrong."""
    found = noted(place.work, "findings")
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
        note(place.work, "killed", True)
    finish_and_compare(place)


def _begin(place: Place, moment: int) -> Steps:
    """Write, as the process that is killed."""
    place.make()
    steps = Steps(moment, kill_this_process if place.survives else die)
    place.patch(steps)
    twopc.register_observer(steps)
    try:
        run(place)
    finally:
        twopc.unregister_observer(steps)
        steps.forget()
    return steps


def finish_and_compare(place: Place) -> None:
    """Look, finish the work and look again, as the second process."""
    findings = Findings()
    place.look(findings, "after the kill")
    place.meanwhile()
    finish(place)
    place.look(findings, "at the end")
    place.judge(findings)
    note(place.work, "findings", asdict(findings))
