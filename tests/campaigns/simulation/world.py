"""The simulated world: actors that take turns, the steps they take, and the faults that befall them.

Every call from the real code into the world is one step of the actor that makes it. A schedule is a mapping from the
number of a step to the fault that happens there; everything else follows from it and the scenario, so a schedule
reproduces a run exactly, and a fault can be left out of it to see whether it matters.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from tests.campaigns.simulation.promises import Broken, Promise, Violation

T = TypeVar("T")

STEPS_AT_MOST = 20_000
"""No schedule needs a tenth of it: one that comes so far does not end."""

SHORT_SLEEP_STEPS = 9
LONG_SLEEP_STEPS = 70
DELAY_STEPS = 23
IN_FLIGHT_STEPS = 70
FOR_EVER = 1 << 40


CRASH_POINTS: set[tuple[str, ...]] = set()
"""Every place in the real code at which a process has died: its lines, from the outermost call to the innermost."""


def _real_code() -> tuple[str, ...]:
    lines = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/twopc" in file and "site-packages" not in file:
            lines.append(f"{file.rsplit('/', 1)[1]}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


class Killed(BaseException):
    """The process is dead: no later step of it has an effect."""


class Fault(Enum):
    """What can happen at a step."""

    CRASH_BEFORE = "the process dies before the effect"
    CRASH_AFTER = "the process dies after the effect"
    LOST_BEFORE = "an error, without the effect"
    LOST_AFTER = "an error, after the effect"
    DELAYED = "an error, and the effect comes later"
    DIES_IN_FLIGHT = "the process dies, and what it has sent takes effect much later"
    SLEEP_SHORT = "the process sleeps for a few steps of the others, which take it for dead"
    SLEEP_LONG = "the process sleeps for many steps of the others, which take it for dead"
    SLEEP_THROUGH = "the process sleeps until nobody else has anything to do"
    PREEMPT = "others go on first, above all who sleeps"
    DRIVER_DIES = "the driver of this task dies, and the task goes on"
    STAGE_RETRY = "all tasks of the stage are begun anew, and this one goes on"
    TIME_OUT = "so much time goes by that every open transaction times out"
    SUSPENDED = "as much time goes by, and the clocks of drivers and tasks, whose machines are suspended, stand still"
    EXPIRY = "so much time goes by that every idle transactional id is forgotten"
    SLOW_MARKERS = "the broker takes its time to write the markers of a commit or an abort"
    MARKER_LEFT_OUT = "the broker leaves out the marker of a commit or an abort, and calls it complete"
    MARKER_LEFT_OUT_LATE = "the broker takes its time over a marker, leaves it out and calls the transaction complete"
    STALE = "a broker answers, now and for a while, that has been cut off from the others since before the last change"
    STALE_AND_EMPTY = "a broker answers, now and for a while, that has been cut off since before it knew of the id"
    EPOCHS_RUN_OUT = "the id is given a new producer id, as its epochs have run out"
    POWER_CUT = "every process dies, and what was not synced is lost"
    POWER_CUT_KEEPS_NAMES = "every process dies; of what was not synced, names survive and contents don't"
    MACHINE_POWER_CUT = "every process of this machine dies, and what it had not synced on a disk of its own is lost"
    MACHINE_DIES_IN_FLIGHT = "the same, and what this process has sent takes effect much later"
    ONE_BEHIND = "the checkpoint has lost its newest batch"
    TWO_BEHIND = "the checkpoint has lost its two newest batches"
    COMMIT_LOST = "the checkpoint has lost that its newest batch is done"
    PLAN_LOST = "the checkpoint has lost what its newest batch reads, and not that it is done"
    LOG_BEHIND = "the log is a backup from before the newest batch of the checkpoint"


OF_THE_CHECKPOINT = (Fault.ONE_BEHIND, Fault.TWO_BEHIND, Fault.COMMIT_LOST, Fault.PLAN_LOST, Fault.LOG_BEHIND)

_ANYWHERE = (Fault.CRASH_BEFORE, Fault.SLEEP_SHORT, Fault.SLEEP_LONG, Fault.SLEEP_THROUGH, Fault.TIME_OUT)
_OF_TASKS = (Fault.DRIVER_DIES, Fault.STAGE_RETRY)


class Op:
    """A kind of step: what it is called in a trace, which faults it can have, and the error of a lost reply."""

    __slots__ = ("lost", "name", "possible")

    def __init__(self, name: str, lost: Callable[[], Exception] | None, *faults: Fault, changes: bool = False) -> None:
        self.name = name
        self.lost = lost or TimeoutError
        own: tuple[Fault, ...] = (Fault.CRASH_AFTER,) if changes else ()
        if lost:
            own += (Fault.LOST_BEFORE, Fault.LOST_AFTER) if changes else (Fault.LOST_BEFORE,)
        if Fault.DELAYED in faults:
            own += (Fault.DIES_IN_FLIGHT,)
        alone = (*_ANYWHERE, *own, *faults)
        beside_others = (*alone, Fault.PREEMPT)
        # Of drivers, then of tasks: alone, beside others.
        self.possible = ((alone, beside_others), ((*alone, *_OF_TASKS), (*beside_others, *_OF_TASKS)))

    def __repr__(self) -> str:
        return self.name


class Actor:
    """One process: a driver or a task attempt."""

    __slots__ = (
        "dead",
        "ended_at",
        "is_task",
        "machine",
        "name",
        "on_stage_retry",
        "on_suspicion",
        "owner",
        "routine",
        "waits_for",
        "wakes_at",
    )

    def __init__(self, name: str, owner: Actor | None, machine: int, body: Callable[[], None], hub: greenlet) -> None:
        self.name = name
        self.owner = owner
        self.machine = machine
        self.is_task = owner is not None
        self.dead = False
        self.ended_at: int | None = None
        self.wakes_at = 0
        self.waits_for: Callable[[], bool] | None = None
        self.on_suspicion: Callable[[], None] = lambda: None
        self.on_stage_retry: Callable[[], None] = lambda: None
        self.routine = greenlet(body, hub)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a trace."""

    actor: str
    op: str
    faults: tuple[Fault, ...]


class Faults(Protocol):
    """Where faults come from."""

    def at(self, step: int, possible: Sequence[Fault]) -> Fault | None:
        """The fault at this step, if any."""

    next_step: int
    """Before this step there is none: the fast way past most of them."""


class Planned:
    """The faults of a schedule."""

    def __init__(self, schedule: Mapping[int, Fault]) -> None:
        self._schedule = dict(sorted(schedule.items()))
        self._left = list(self._schedule)
        self.next_step = self._left[0] if self._left else FOR_EVER

    def at(self, step: int, possible: Sequence[Fault]) -> Fault | None:
        self._left = [planned for planned in self._left if planned > step]
        self.next_step = self._left[0] if self._left else FOR_EVER
        fault = self._schedule.get(step)
        return fault if fault in possible else None


class Drawn:
    """Faults drawn by a seed: up to ``budget`` of them, one every ``gap`` steps on average, but ``without`` some."""

    def __init__(self, rng: random.Random, budget: int, gap: int, without: Container[Fault] = ()) -> None:
        self._rng, self._budget, self._gap, self._without = rng, budget, gap, without
        self.next_step = self._draw(0)

    def _draw(self, step: int) -> int:
        return step + 1 + int(self._rng.random() * 2 * self._gap) if self._budget else FOR_EVER

    def at(self, step: int, possible: Sequence[Fault]) -> Fault | None:
        self._budget -= 1
        self.next_step = self._draw(step)
        drawn = possible[int(self._rng.random() * len(possible))]
        return None if drawn in self._without else drawn


@dataclass
class World:
    """Who runs, what time it is, and what has happened."""

    faults: Faults
    records_trace: bool = False
    is_disturbed: bool = True
    steps: int = 0
    now_ms: int = 0
    suspended_ms: int = 0
    happened: dict[int, Fault] = field(default_factory=dict)
    trace: list[Step] = field(default_factory=list)
    violation: Broken | None = None

    def __post_init__(self) -> None:
        self._hub = getcurrent()
        self._actors: list[Actor] = []
        self._delayed: list[tuple[int, Callable[[], object]]] = []
        self.current: Actor | None = None
        self.on_time_out: Callable[[], None] = lambda: None
        self.on_suspension: Callable[[], None] = lambda: None
        self.on_expiry: Callable[[], None] = lambda: None
        self.on_power_cut: Callable[[bool], None] = lambda _: None
        self.on_machine_power_cut: Callable[[int], None] = lambda _: None
        self.on_other: Callable[[Fault], None] = lambda _: None
        self.special: Fault | None = None  # a fault that the effect itself must know of

    # For the models: steps. -----------------------------------------------------------------------------------------

    def step(self, op: Op, effect: Callable[..., T], *args: Any) -> T:
        """One step of the current actor: ``effect``, unless a fault befalls it."""
        actor = self.current
        if actor is None:
            return effect(*args)  # before and after the run nobody disturbs
        number = self.steps
        self.steps = number + 1
        self.now_ms += 1
        if actor.dead:
            raise Killed
        if self.records_trace:
            self.trace.append(Step(actor.name, op.name, self._possible(actor, op) if self.is_disturbed else ()))
        if self._delayed and self._delayed[0][0] <= number:
            self._arrive()
        if number < self.faults.next_step:
            if number > STEPS_AT_MOST:
                raise Violation(Promise.ENDS, f"does not end: {actor.name} is at {op.name}")
            return effect(*args)
        fault = self.faults.at(number, self._possible(actor, op))
        if fault is None:
            return effect(*args)
        self.happened[number] = fault
        return self._disturbed(actor, fault, op, effect, args)

    def _possible(self, actor: Actor, op: Op) -> tuple[Fault, ...]:
        return op.possible[actor.is_task][len(self._actors) > 1 or bool(self._delayed)]

    def _disturbed(  # noqa: C901, PLR0912  # one case a fault
        self, actor: Actor, fault: Fault, op: Op, effect: Callable[..., T], args: tuple[Any, ...]
    ) -> T:
        match fault:
            case Fault.CRASH_BEFORE:
                self._die(actor)
            case Fault.CRASH_AFTER:
                effect(*args)
                self._die(actor)
            case Fault.LOST_BEFORE:
                raise op.lost()
            case Fault.LOST_AFTER:
                effect(*args)
                raise op.lost()
            case Fault.DELAYED:
                self.later(DELAY_STEPS, _ignoring_errors(effect, args))
                raise op.lost()
            case Fault.DIES_IN_FLIGHT:
                self.later(IN_FLIGHT_STEPS, _ignoring_errors(effect, args))
                self._die(actor)
            case Fault.SLEEP_SHORT:
                self._sleep(actor, self.steps + SHORT_SLEEP_STEPS)
            case Fault.SLEEP_LONG:
                self._sleep(actor, self.steps + LONG_SLEEP_STEPS)
            case Fault.SLEEP_THROUGH:
                self._sleep(actor, FOR_EVER)
            case Fault.PREEMPT:
                if not self._wake_sleeper():
                    self._arrive()
                self._yield(actor)
            case Fault.STAGE_RETRY | Fault.DRIVER_DIES:
                self._befall_driver(actor, fault)
            case Fault.TIME_OUT:
                self.on_time_out()
            case Fault.SUSPENDED:
                self.on_suspension()
            case Fault.EXPIRY:
                self.on_expiry()
            case Fault.POWER_CUT | Fault.POWER_CUT_KEEPS_NAMES | Fault.MACHINE_POWER_CUT:
                self._cut_power(actor, fault)
            case Fault.MACHINE_DIES_IN_FLIGHT:
                self.later(IN_FLIGHT_STEPS, _ignoring_errors(effect, args))
                self._cut_power(actor, Fault.MACHINE_POWER_CUT)
            case _ if fault in OF_THE_CHECKPOINT:
                self.on_other(fault)
            case _:
                self.special = fault
        try:
            return effect(*args)
        finally:
            self.special = None

    def _die(self, actor: Actor) -> None:
        """A process dies, and its tasks with it."""
        CRASH_POINTS.add(_real_code())
        for other in self._actors:
            if other is actor or other.owner is actor:
                other.dead = True
        raise Killed

    def _cut_power(self, actor: Actor, fault: Fault) -> None:
        CRASH_POINTS.add(_real_code())
        everywhere = fault is not Fault.MACHINE_POWER_CUT
        for other in self._actors:
            other.dead |= everywhere or other.machine == actor.machine
        if everywhere:
            self.on_power_cut(fault is Fault.POWER_CUT_KEEPS_NAMES)
        else:
            self.on_machine_power_cut(actor.machine)
        raise Killed

    def _befall_driver(self, task: Actor, fault: Fault) -> None:
        if task.owner is not None and not task.owner.dead:
            if fault is Fault.DRIVER_DIES:
                task.owner.dead = True
            else:
                task.on_stage_retry()

    def _sleep(self, actor: Actor, until: int) -> None:
        actor.wakes_at = until
        actor.on_suspicion()
        self._yield(actor)

    def _yield(self, actor: Actor) -> None:
        self._actors.remove(actor)
        self._actors.append(actor)
        self._switch(actor)

    def _switch(self, actor: Actor) -> None:
        self._hub.switch()
        if actor.dead:
            raise Killed

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let others go on until ``condition`` holds."""
        actor = self.current
        assert actor is not None
        actor.waits_for = condition
        self._switch(actor)

    def later(self, steps: int, effect: Callable[[], object]) -> None:
        """Have ``effect`` so many steps from now, or when nobody has anything to do."""
        self._delayed.append((self.steps + steps, effect))
        self._delayed.sort(key=lambda due: due[0])

    def _arrive(self) -> bool:
        """What is due next of what comes late."""
        if self._delayed:
            self._delayed.pop(0)[1]()
            return True
        return False

    def end_all(self) -> None:
        """Every process is ended, and what they had sent has arrived."""
        for actor in self._actors:
            actor.dead = True
        while self._arrive():
            pass

    @property
    def is_quiet(self) -> bool:
        """Whether only the current actor lives, and nothing comes late."""
        return not self._delayed and all(other.dead or other is self.current for other in self._actors)

    # The scheduler. -------------------------------------------------------------------------------------------------

    def start(self, name: str, body: Callable[[], None], owner: Actor | None = None, machine: int = 0) -> Actor:
        """A new process."""

        def routine() -> None:
            try:
                body()
            except Killed:
                actor.dead = True
                if owner is not None and not owner.dead:
                    actor.on_suspicion()
            except Violation as violation:
                self.violation = self.violation or violation.broken
            finally:
                actor.dead = True
                actor.ended_at = self.steps

        actor = Actor(name, owner, machine, routine, self._hub)
        self._actors.append(actor)
        return actor

    def alive(self, actor: Actor) -> bool:
        """Whether it runs, as far as the others can see: one that sleeps does not."""
        return not actor.dead and actor.wakes_at <= self.steps

    def run(self, when_idle: Callable[[], bool]) -> None:
        """Until nobody has anything to do. ``when_idle`` may start somebody, and says whether it did."""
        try:
            while self.violation is None:
                actor = self._next()
                if actor is not None:
                    self.current = actor
                    actor.routine.switch()
                    self.current = None
                elif not (when_idle() or self._wake()):
                    return
        except Violation as violation:  # of an effect that came late
            self.violation = violation.broken

    def _next(self) -> Actor | None:
        for actor in tuple(self._actors):
            if actor.dead:
                self._bury(actor)
            elif actor.wakes_at <= self.steps and (actor.waits_for is None or actor.waits_for()):
                actor.waits_for = None
                return actor
        return None

    def _bury(self, actor: Actor) -> None:
        """Unwind what a dead process was doing, without an effect."""
        self._actors.remove(actor)
        if actor.routine:
            self.current = actor
            actor.routine.throw(Killed)
            self.current = None

    def _wake(self) -> bool:
        return self._arrive() or self._wake_sleeper()

    def _wake_sleeper(self) -> bool:
        """The one that would wake next, or went to sleep first."""
        asleep = [actor for actor in self._actors if actor.wakes_at > self.steps and not actor.dead]
        if not asleep:
            return False
        first = min(asleep, key=lambda actor: actor.wakes_at)
        first.wakes_at = 0
        self._actors.remove(first)
        self._actors.insert(0, first)
        return True


def _ignoring_errors(effect: Callable[..., object], args: tuple[Any, ...]) -> Callable[[], None]:
    def delayed() -> None:
        with contextlib.suppress(Exception):  # its answer reaches nobody
            effect(*args)

    return delayed
