"""Where the query of a case writes, and what is found there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import twopc

if TYPE_CHECKING:
    from tests.campaigns.every_step.blows import Strike
    from tests.campaigns.every_step.steps import Steps
    from twopc.log.store import LogStore

Sinks: TypeAlias = "Mapping[str, twopc.TwoPhaseCommitSink[Any]]"


@dataclass
class Findings:
    """Counts of each kind of failure, and their descriptions."""

    counts: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def add(self, kind: str, count: int, what: str) -> None:
        """Count failures of a kind, if there are any."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            self.told.append(what)


class Server(Protocol):
    """A server behind a place, which survives a kill."""

    @property
    def pid(self) -> int: ...

    def restart_if_killed(self) -> None: ...

    def mend(self, error: str) -> int:
        """Do what an operator does after ``error``. Return the number of repairs."""


class Place(Protocol):
    """The target systems of one case. Each process of the case has its own copy."""

    @property
    def work(self) -> Path:
        """A local folder for the query's position, and for notes from process to process."""

    @property
    def log(self) -> LogStore: ...

    @property
    def survives(self) -> bool:
        """Whether the contents outlive a process."""

    @property
    def is_keyed(self) -> bool:
        """Whether the sinks replace and delete records by ``query.KEY``."""

    def sinks(self) -> Sinks:
        """Return new sinks, as a process that starts creates them."""

    def make(self) -> None:
        """Create the target systems, with contents of other owners."""

    def patch(self, steps: Steps) -> None:
        """Turn this process's calls into the target systems into steps."""

    def watch_commits(self, strike: Strike) -> None:
        """Report each call of this process that commits something to ``strike``."""

    def meanwhile(self) -> None:
        """Do what others do between the kill and the next start of the query."""

    def look(self, findings: Findings, when: str) -> None:
        """Add what no reader may see at any time: a part of a batch, or an undecided one."""

    def judge(self, findings: Findings) -> None:
        """Add what is wrong at the end: lost and doubled records, and anything left behind."""


class NoServer:
    """Stands for the server of a place that has none."""

    pid = 0

    def restart_if_killed(self) -> None:
        """Do nothing."""

    def mend(self, error: str) -> int:
        return 0


class Places(Protocol):
    """Creates the places of one kind."""

    @property
    def name(self) -> str:
        """The name of the kind, in the report."""

    @property
    def victims(self) -> Sequence[tuple[str, ...]]:
        """Which processes blows kill, in turn."""

    def new(self) -> Place:
        """Return a new place, not made yet."""

    def with_server(self) -> AbstractContextManager[tuple[Place, Server]]:
        """Return a new place, on a server of its own if it needs one; and that server, running."""
