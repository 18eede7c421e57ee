"""The simulated world: actors that take turns, their steps, and the faults that hit them.

Every call from the real code into the world is one step of the calling actor. A schedule maps step numbers to the
faults that happen there. Schedule and scenario determine everything else, so a schedule reproduces a run exactly, and a
fault can be removed to see whether it matters.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from tests.campaigns.simulation.promises import Broken, Promise, Violation

T = TypeVar("T")

STEPS_AT_MOST = 20_000
"""The limit of a run. No schedule needs a tenth of it, so a run that reaches it does not end."""

SHORT_SLEEP_STEPS = 9
LONG_SLEEP_STEPS = 70
DELAY_STEPS = 23
IN_FLIGHT_STEPS = 70
FOR_EVER = 1 << 40

CRASH_POINTS: set[tuple[str, ...]] = set()
"""Every place in the real code at which a process has died: the lines of its call stack, outermost call first."""


def _crash_point() -> tuple[str, ...]:
    lines = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/twopc" in file and "/tests/" not in file and "site-packages" not in file:
            lines.append(f"{file.rsplit('/', 1)[1]}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


class Killed(BaseException):
    """Raised in a process that is dead. None of its later steps has an effect."""


class Fault(Enum):
    """A fault that can happen at a step."""

    CRASH_BEFORE = "the process dies before the effect"
    CRASH_AFTER = "the process dies after the effect"
    LOST_BEFORE = "an error, without the effect"
    LOST_AFTER = "an error, after the effect"
    DELAYED = "an error; the effect comes later"
    DIES_IN_FLIGHT = "the process dies; its request takes effect much later"
    SLEEP_SHORT = "the process sleeps for a few steps of the others, which consider it dead"
    SLEEP_LONG = "the process sleeps for many steps of the others, which consider it dead"
    SLEEP_THROUGH = "the process sleeps until no other process has anything to do"
    PREEMPT = "other processes run first, a sleeping one before all others"
    DRIVER_DIES = "the driver of this task dies; the task goes on"
    STAGE_RETRY = "all tasks of the Spark stage are started again; this one goes on"
    TIME_OUT = "every open transaction times out"
    SUSPENDED = (
        "every open transaction times out while the machines of drivers and tasks are suspended, clocks included"
    )
    EXPIRY = "the broker forgets every idle transactional id"
    SLOW_MARKERS = "the broker writes the markers of a commit or an abort late"
    MARKER_LEFT_OUT = "the broker leaves out the marker of a commit or an abort, and reports completion"
    MARKER_LEFT_OUT_LATE = "after a delay, the broker leaves out a marker and reports completion"
    STALE = "for a while, a broker answers that was cut off from the others before the last change"
    STALE_AND_EMPTY = "for a while, a broker answers that was cut off before it knew the id"
    EPOCHS_RUN_OUT = "the epochs of the id run out, so it gets a new producer id"
    FOREIGN_COMMIT = "another writer commits to the table first"
    PARTLY = "the catalog makes one of several changes and reports a conflict"
    TABLE_RESTORED = "the table is restored from a backup that lacks the sink's newest batch"
    POWER_CUT = "every process dies; everything unsynced is lost"
    POWER_CUT_KEEPS_NAMES = "every process dies; unsynced contents are lost, unsynced names survive"
    MACHINE_POWER_CUT = "every process of this machine dies; everything unsynced on its own disk is lost"
    MACHINE_DIES_IN_FLIGHT = "the same, and this process's request takes effect much later"
    ONE_BEHIND = "the checkpoint loses its newest batch"
    TWO_BEHIND = "the checkpoint loses its two newest batches"
    COMMIT_LOST = "the checkpoint loses the record that its newest batch is done"
    PLAN_LOST = "the checkpoint loses the plan of its newest batch, but not the record that it is done"
    LOG_BEHIND = "the log is replaced by a backup that lacks the checkpoint's newest batch"


OF_THE_CHECKPOINT = (Fault.ONE_BEHIND, Fault.TWO_BEHIND, Fault.COMMIT_LOST, Fault.PLAN_LOST, Fault.LOG_BEHIND)

_ANYWHERE = (Fault.CRASH_BEFORE, Fault.SLEEP_SHORT, Fault.SLEEP_LONG, Fault.SLEEP_THROUGH, Fault.TIME_OUT)
_OF_TASKS = (Fault.DRIVER_DIES, Fault.STAGE_RETRY)


class Op:
    """A kind of step: its name in a trace, the faults that can hit it, and the error that a lost reply raises."""

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
        # For drivers, then for tasks; in each, first for a lone process, then for one among others.
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
    """A source of faults."""

    def at(self, step: int, possible: Sequence[Fault]) -> Fault | None:
        """Return the fault at this step, if any."""

    next_step: int
    """No fault happens before this step, so ``at`` need not be called for earlier ones."""


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
    """Faults drawn by a seed: up to ``budget``, one per ``gap`` steps on average."""

    def __init__(self, rng: random.Random, budget: int, gap: int) -> None:
        self._rng, self._budget, self._gap = rng, budget, gap
        self.next_step = self._draw(0)

    def _draw(self, step: int) -> int:
        return step + 1 + int(self._rng.random() * 2 * self._gap) if self._budget else FOR_EVER

    def at(self, step: int, possible: Sequence[Fault]) -> Fault | None:
        self._budget -= 1
        self.next_step = self._draw(step)
        return possible[int(self._rng.random() * len(possible))]


@dataclass
class World:
    """The processes that run, the time, and the faults so far."""

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
        self.special: Fault | None = None  # a fault that the effect itself must handle

    # For the models: steps. -----------------------------------------------------------------------------------------

    def idle(self, op: Op) -> None:
        """Take one step of the current actor that changes nothing."""
        self.step(op, lambda: None)

    def step(self, op: Op, effect: Callable[..., T], *args: Any) -> T:
        """Take one step of the current actor: run ``effect``, unless a fault prevents it."""
        actor = self.current
        if actor is None:
            return effect(*args)  # there are no faults before and after the run
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
                raise Violation(Promise.ENDS, f"the run does not end: {actor.name} is at {op.name}")
            return effect(*args)
        fault = self.faults.at(number, self._possible(actor, op))
        if fault is None:
            return effect(*args)
        self.happened[number] = fault
        return self._disturbed(actor, fault, op, effect, args)

    def _possible(self, actor: Actor, op: Op) -> tuple[Fault, ...]:
        return op.possible[actor.is_task][len(self._actors) > 1 or bool(self._delayed)]

    def _disturbed(  # noqa: C901, PLR0912  # one case per fault
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
        """Kill a process and its tasks."""
        CRASH_POINTS.add(_crash_point())
        for other in self._actors:
            if other is actor or other.owner is actor:
                other.dead = True
        raise Killed

    def _cut_power(self, actor: Actor, fault: Fault) -> None:
        CRASH_POINTS.add(_crash_point())
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
        """Let other actors run until ``condition`` holds."""
        actor = self.current
        assert actor is not None
        actor.waits_for = condition
        self._switch(actor)

    def later(self, steps: int, effect: Callable[[], object]) -> None:
        """Schedule ``effect`` for ``steps`` steps from now, or for when no actor has anything to do."""
        self._delayed.append((self.steps + steps, effect))
        self._delayed.sort(key=lambda due: due[0])

    def _arrive(self) -> bool:
        """Run the next delayed effect. Return whether there was one."""
        if self._delayed:
            self._delayed.pop(0)[1]()
            return True
        return False

    def end_all(self) -> None:
        """End every process, and run all delayed effects."""
        for actor in self._actors:
            actor.dead = True
        while self._arrive():
            pass

    @property
    def is_quiet(self) -> bool:
        """Whether only the current actor lives and no effect is delayed."""
        return not self._delayed and all(other.dead or other is self.current for other in self._actors)

    # The scheduler. -------------------------------------------------------------------------------------------------

    def start(self, name: str, body: Callable[[], None], owner: Actor | None = None, machine: int = 0) -> Actor:
        """Start a process."""

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
        """Return whether an actor is alive as far as the others can see. A sleeping one is not."""
        return not actor.dead and actor.wakes_at <= self.steps

    def run(self, when_idle: Callable[[], bool]) -> None:
        """Run until no actor has anything to do. ``when_idle`` may start an actor, and returns whether it did."""
        try:
            while self.violation is None:
                actor = self._next()
                if actor is not None:
                    self.current = actor
                    actor.routine.switch()
                    self.current = None
                elif not (when_idle() or self._wake()):
                    return
        except Violation as violation:  # from a delayed effect
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
        """Unwind a dead process without any effect."""
        self._actors.remove(actor)
        if actor.routine:
            self.current = actor
            actor.routine.throw(Killed)
            self.current = None

    def _wake(self) -> bool:
        return self._arrive() or self._wake_sleeper()

    def _wake_sleeper(self) -> bool:
        """Wake the actor that would wake next, or that fell asleep first. Return whether there was one."""
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
        with contextlib.suppress(Exception):  # nobody receives its answer
            effect(*args)

    return delayed
