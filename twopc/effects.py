"""Effects: the requests that the protocol makes. Each is a frozen value that ``performer`` performs and answers.

In ``protocol``, the answer is the result of the ``yield``, and an error is raised there: at once, or only after retries
if a target system does not answer. Once the batch is decided, retries have no limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from twopc.pending import PendingTransactions
from twopc.transaction import Committable, JsonValue, Vote
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    from twopc.events import Event
    from twopc.log.entries import Decision, Entry, Repetition
    from twopc.phases import Phase

logger = logging.getLogger("twopc.protocol")

ResultT = TypeVar("ResultT")

Wanted: TypeAlias = "Mapping[str, Collection[int]]"
"""Sink name → the partitions of the batch that the sink has lost."""

Recompute: TypeAlias = "Callable[[Round, Wanted], Iterable[Vote]]"
"""Has participants write lost partitions to their sinks again, and returns the votes."""

Work: TypeAlias = "Mapping[str, Sequence[Committable]]"
"""Sink name → transactions of one batch."""


@dataclass(frozen=True, slots=True)
class Member:
    """A sink, as the protocol knows it. ``has_copies``: whether its transactions have replay copies."""

    commits_last: bool
    may_time_out: bool
    has_copies: bool


@dataclass(slots=True)
class LogView:
    """The commit log as one incarnation knows it: its newest entry, and that entry's slot. ``url`` names the log."""

    url: str
    slot: int
    tail: Entry

    @property
    def incarnation(self) -> int:
        return self.tail.incarnation


@dataclass(slots=True)
class Life:
    """One incarnation of a coordinator: the only record that the protocol changes.

    The protocol changes it in place, so that an error does not lose a successful append.
    """

    log: LogView  # the commit log as this incarnation knows it
    # The sinks by name, in the order in which they are called.
    members: Mapping[str, Member] = field(default_factory=dict)
    # Batches that are decided and not known to be committed.
    pending: PendingTransactions = field(default_factory=PendingTransactions)
    # Whether this process has run a batch, or found one decided. Until then, participants of another process may have
    # voted.
    has_run: bool = False
    computations: int = 0  # how often decided batches were computed again

    @property
    def tail(self) -> Entry:
        return self.log.tail

    def remember(self, decision: Decision) -> None:
        """Add a decision to the pending batches. Every sink gets a part, even an empty one, because the batch is
        settled when all sinks have completed their parts."""
        parts = {name: decision.committables.get(name, ()) for name in self.members}
        self.pending.add(decision.batch_id, parts)

    def decision(self, batch_id: int) -> Decision:
        """Return the unresolved decision of a batch, as the log records it now."""
        [decision] = [decision for decision in self.tail.unresolved if decision.batch_id == batch_id]
        return decision


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch that the query wants to run. See ``Coordinator.run`` for the attributes."""

    batch_id: int
    phase_one: Callable[[Round], Iterable[Vote]]
    reads: JsonValue
    follows: JsonValue
    began_s: float | None
    recompute: Recompute | None
    first_batch_id: int


@dataclass(frozen=True, slots=True)
class FailedCommit:
    """A commit of one transaction, or of a sink's whole batch, that raised ``error``."""

    sink: str
    committables: tuple[Committable, ...]
    error: Exception

    @property
    def transaction_id(self) -> str | None:
        """The transaction that was to be committed; None if there were several."""
        return self.committables[0].transaction_id if len(self.committables) == 1 else None


Effect: TypeAlias = Any
"""One of the named tuples below. A comment after each describes its answer, and whether errors are raised at once."""

Look: TypeAlias = "Callable[[], Steps[Any]]"
"""Starts a sequence of steps from the beginning."""

# The log. Errors are raised at once.
Slots = NamedTuple("Slots", [])  # the numbers of the log's entries, ascending
ReadSlot = NamedTuple("ReadSlot", [("slot", int)])  # an entry; None if it is not there
ReadId = NamedTuple("ReadId", [("slot", int)])  # the id of an entry; None if it is not there
Put = NamedTuple("Put", [("slot", int), ("entry", "Entry")])  # creates the entry, or raises FileExistsError
DeleteSlot = NamedTuple("DeleteSlot", [("slot", int)])
RequireCurrent = NamedTuple("RequireCurrent", [])  # raises if another server has taken the log's place
UntilStable = NamedTuple("UntilStable", [("look", "Look")])  # the steps' result; repeated while others change the log

Noted = NamedTuple("Noted", [("tail", "Entry")])  # the failure noted after that entry, or None. Raises nothing.
Note = NamedTuple("Note", [("tail", "Entry"), ("repetition", "Repetition")])  # for the next start. Raises nothing.

# The sinks. A call that a target system does not answer is repeated, without limit once the batch is decided.
Bind = NamedTuple("Bind", [("life", Life)])  # the members; later effects are performed for this life
OpenSink = NamedTuple("OpenSink", [("sink", str), ("is_patient", bool)])  # if not patient, errors are raised at once


class Write(NamedTuple):  # the votes. At once.
    """Phase one. With ``wanted``, participants write lost partitions again. ``began_s``: its start, if not now."""

    round: Round
    phase_one: Callable[..., Iterable[Vote]]
    wanted: Wanted | None = None
    began_s: float | None = None


Seal = NamedTuple("Seal", [("what", str), ("sink", str), ("votes", Sequence[Committable])])  # those to decide
Commit = NamedTuple(
    "Commit", [("batch_id", int), ("due", "Work"), ("recovered", bool), ("owner", str)]
)  # the failed commits, after all were tried
Complete = NamedTuple("Complete", [("sink", str), ("batch_id", int), ("committables", Sequence[Committable])])
Announce = NamedTuple("Announce", [("sink", str), ("batch_id", int), ("committed", "Work"), ("given_up", "Work")])
WriteAgain = NamedTuple(  # the new transaction, sealed, with the records of the lost one's replay copy
    "WriteAgain", [("sink", str), ("batch_id", int), ("lost", Committable), ("round", Round)]
)
List = NamedTuple("List", [("sink", str)])  # its open transactions. At once.
Abort = NamedTuple("Abort", [("sink", str), ("transaction", Committable)])  # at once
ListCopies = NamedTuple("ListCopies", [("sink", str)])  # the names of its replay copies. At once.
RemoveCopy = NamedTuple("RemoveCopy", [("sink", str), ("name", str)])  # at once

# The process.


class Repeat(NamedTuple):  # the steps' result
    """Take a sequence of steps, such as a sweep, and start it over until every call is answered."""

    what: str
    steps: Look
    patience_s: float | None = None


class Enter(NamedTuple):
    """Enter a phase. ``began_s``: when it began, if not now."""

    phase: Phase
    batch_id: int | None = None
    began_s: float | None = None


Tell = NamedTuple("Tell", [("event", "Event")])  # to observers
TellCommitted = NamedTuple(
    "TellCommitted", [("decision", "Decision"), ("recovered", bool)]
)  # to observers, that all of the batch is visible
Log = NamedTuple("Log", [("level", int), ("message", str)])


def log_line(line: Log) -> None:
    """Perform ``Log``."""
    logger.log(line.level, "%s", line.message)


Steps: TypeAlias = Generator[Effect, Any, ResultT]
"""A part of the protocol: it yields effects, is sent their answers, and returns a result."""


def perform(steps: Steps[ResultT], do: Callable[[Effect], Any]) -> ResultT:
    """Take steps, calling ``do`` for each effect, and return their result. Raises what they raise."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            effect = steps.send(answer) if error is None else steps.throw(error)
            answer = error = None
            try:
                answer = do(effect)
            except BaseException as raised:  # noqa: BLE001  # an interrupt, too, ends the steps
                error = raised
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's result
    finally:
        error = None  # it refers to this frame
