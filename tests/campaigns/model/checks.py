"""What TLC checks: the specification within some bounds, as it is and with one defect at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

INVARIANTS = (
    "VisibleIsDecided",
    "OpenWhenDecided",
    "DecidedStays",
    "NothingDoubled",
    "NothingLost",
    "NothingSkipped",
    "InOrder",
)
PROPERTIES = ("EventuallyVisible", "EventuallyNothingOpen")
FAULTS = ("rivals", "timeouts", "unanswered", "stale", "falls")
NO_HOLE = "none"


@dataclass(frozen=True, slots=True)
class Check:
    """One run of TLC. The attributes up to ``kept`` are the sizes, and those from ``rivals`` on the numbers of faults;
    see ``twopc.tla``.

    Attributes:
        module: ``twopc``; ``steps`` for the protocol in smaller steps; or ``keyed`` for sinks with keys.
        hole: the defect, which must lead to a counterexample.
        liveness: whether to check that what must happen does happen, instead of that nothing wrong happens.
        seconds: for how long to check random behaviors; 0 for all behaviors, to the end.
    """

    lives: int = 2
    tasks: int = 1
    sinks: int = 1
    batches: int = 2
    kept: int = 1
    rivals: int = 0
    timeouts: int = 0
    unanswered: int = 0
    stale: int = 0
    falls: int = 0
    hole: str = NO_HOLE
    liveness: bool = False
    module: str = "twopc"
    seconds: int = 0

    def __str__(self) -> str:
        """The sizes and the faults."""
        sizes = f"{self.lives} lives, {self.tasks} x {self.sinks} x {self.batches}"
        faults = [name for name in FAULTS if getattr(self, name)]
        others = {
            "liveness": self.liveness,
            "smaller steps": self.module == "steps",
            "keys": self.module == "keyed",
            f"random behaviors for {self.seconds} s": self.seconds,
        }
        return ", ".join([sizes, *faults, *(name for name, is_so in others.items() if is_so)])

    @property
    def invariants(self) -> tuple[str, ...]:
        """The invariants that the module has."""
        return (*INVARIANTS, "AppliedInOrder") if self.module == "keyed" else INVARIANTS

    def configuration(self) -> str:
        """Return the text of TLC's configuration."""
        tasks, sinks = _values("t", self.tasks), _values("s", self.sinks)
        checked = ["PROPERTIES", *PROPERTIES] if self.liveness else ["INVARIANTS", *self.invariants]
        return "\n".join(
            [
                f"SPECIFICATION {self._specification}",
                "CONSTANTS",
                *(f"  {value} = {value}" for value in (*tasks, *sinks)),
                f"  Tasks = {{{', '.join(tasks)}}}",
                f"  Sinks = {{{', '.join(sinks)}}}",
                *self.numbers(),
                " ".join(checked),
                # TLC can't take states for one where it follows a behavior to its end.
                *([] if self.liveness or self.seconds else ["SYMMETRY Symmetric", *self._view]),
            ]
        )

    @property
    def _view(self) -> Sequence[str]:
        """What makes a state. With a defect or in another module, everything does."""
        return ["VIEW Relevant"] if self.hole == NO_HOLE and self.module == "twopc" else []

    @property
    def _specification(self) -> str:
        if self.module != "twopc":
            return f"{self.module.capitalize()}Spec"
        return "FairSpec" if self.liveness else "Spec"

    def numbers(self) -> Sequence[str]:
        """Return the lines of the configuration that have the numbers and the defect."""
        names = ("lives", "batches", "kept", *FAULTS)
        return [*(f"  {name.capitalize()} = {getattr(self, name)}" for name in names), f'  Hole = "{self.hole}"']


def _values(letter: str, number: int) -> Sequence[str]:
    return [f"{letter}{each}" for each in range(1, number + 1)]


HOLES: Sequence[Check] = (
    Check(hole="a batch is recognized by its number alone", batches=3, falls=1),
    Check(hole="a batch may follow another one than the log's", lives=3, falls=1),
    Check(hole="names come back by number", batches=3, rivals=1),
    Check(hole="a name is leased twice", rivals=1),
    Check(hole="a name of a newer round is taken", rivals=1),
    Check(hole="a stale coordinator's answer is final", stale=1),
    Check(hole="a commit is not bound to its epoch", timeouts=1),
    Check(hole="a lost transaction is passed over", timeouts=1),
    Check(hole="a seal does not veto", timeouts=1),
    Check(hole="the decision does not wait for all votes", tasks=2),
    Check(hole="a decision without an answer is rolled back", unanswered=1),
    Check(hole="an older coordinator is not fenced"),
    Check(hole="a pruned slot counts", lives=3, kept=0),
    Check(hole="a batch is complete before all of it is committed"),
    Check(hole="a recovery commits nothing"),
    Check(hole="the log is read before the transactions are listed"),
    Check(hole="a sweep does not read the log again"),
    Check(hole="a repeated commit applies its changes again", module="keyed"),
    Check(hole="a query that rests does not sweep", batches=1, kept=9, liveness=True),
)
"""Each defect, and small bounds within which it shows."""

_WHOLE = Check(tasks=2, sinks=2, batches=3)

FULL: Sequence[Check] = (
    _WHOLE,
    replace(_WHOLE, unanswered=1),
    replace(_WHOLE, timeouts=1),
    replace(_WHOLE, falls=1),
    replace(_WHOLE, rivals=1),
    Check(rivals=1, timeouts=1, unanswered=1, falls=1),
    Check(lives=3, kept=0),
    Check(kept=9, unanswered=1, liveness=True),
    Check(kept=9, timeouts=1, falls=1, liveness=True),
    Check(kept=9, batches=1, module="steps"),
    Check(tasks=2, sinks=2, module="keyed"),
    Check(rivals=1, unanswered=1, timeouts=1, module="keyed"),
    replace(_WHOLE, rivals=1, timeouts=1, unanswered=1, falls=1, seconds=70),
)
"""Two lives with two tasks, two sinks and three batches: without faults, and with one fault of each kind. Then all
faults, three lives, liveness and keys within small bounds, and all faults within the large ones at random."""

SHORT: Sequence[Check] = (
    Check(tasks=2, sinks=2),
    Check(unanswered=1),
    Check(timeouts=1),
    Check(falls=1),
    Check(kept=9, liveness=True),
    Check(module="keyed"),
)
"""For the tests: seconds each."""
