"""One query on the target system of a ``SinkContract``: the calls of its coordinator and its participants."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from twopc.commits import calls_of
from twopc.events import Event
from twopc.participant import Participant
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

ResultT = TypeVar("ResultT")

FIRST_ROUND = Round(incarnation=1, batch_id=0)


class Query:
    """Makes every call with a new sink, like a process that knows nothing of the previous process.

    Args:
        make_sink: returns a new, unbound sink.
        name: the sink's name in the query.
        log_id: the id of the query's log.
        travels: whether the sink is pickled on its way to the participants.
        patience_s: how long a call that raises ``Retriable`` is repeated.
    """

    def __init__(
        self,
        make_sink: Callable[[], TwoPhaseCommitSink[Any]],
        name: str,
        log_id: str,
        travels: bool,
        patience_s: float,
    ) -> None:
        self.name = name
        self._make_sink = make_sink
        self._log_id = log_id
        self._travels = travels
        self._patience_s = patience_s

    def answered(self, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Repeat a call while it raises ``Retriable``, as a coordinator does, but only for ``patience_s``."""
        return answered(self._patience_s, call, *arguments)

    def sink(self) -> TwoPhaseCommitSink[Any]:
        """Return a new sink, bound and opened as at the start of an incarnation."""
        sink = self._make_sink()
        sink.bind(self.name, self._log_id)
        self.answered(sink.open)
        return sink

    def participant(
        self, schema: pa.Schema, round: Round = FIRST_ROUND, partition: int = 0, serial: int | None = None
    ) -> Participant:
        """Return a task attempt whose sink was validated for ``schema`` and sent by the coordinator."""
        sink = self.sink()
        self.answered(sink.require_valid, schema)
        return self.sent(sink, round, partition, serial)

    def sent(
        self,
        sink: TwoPhaseCommitSink[Any],
        round: Round = FIRST_ROUND,
        partition: int = 0,
        serial: int | None = None,
        max_bad_records: int = 0,
    ) -> Participant:
        """Return a task attempt that was sent ``sink``."""
        sent = pickle.loads(pickle.dumps(sink)) if self._travels else sink  # noqa: S301  # our own bytes
        return Participant(
            {self.name: sent}, round, partition=partition, serial=serial, max_bad_records=max_bad_records
        )

    def pre_committed(
        self, *batches: pa.RecordBatch, round: Round = FIRST_ROUND, partition: int = 0, serial: int | None = None
    ) -> Committable:
        """Write each of ``batches`` and pre-commit. Return the committable as read back from the log."""
        with self.participant(batches[0].schema, round, partition, serial) as participant:
            for batch in batches:
                participant.write(self.name, batch)
            return self.sealed(participant)

    def sealed(self, participant: Participant) -> Committable:
        """Return the vote of ``participant`` on this query's sink, sealed and read back from the log."""
        vote = participant.pre_commit()[self.name]
        [sealed] = self.answered(self.sink().seal, [vote], 0.0)
        return Committable.from_json(json.loads(json.dumps(sealed.to_json())))

    def commit(self, *committables: Committable, batch_id: int = FIRST_ROUND.batch_id) -> None:
        """Commit transactions of one decided batch, as a coordinator does."""
        for call in calls_of(self.sink(), batch_id, committables):
            self.answered(call.commit)

    def complete(self, batch_id: int, *committables: Committable) -> None:
        """Report a batch as committed in every sink."""
        self.answered(self.sink().complete, batch_id, committables)

    def publish(self, *committables: Committable, batch_id: int = FIRST_ROUND.batch_id) -> None:
        """Commit and complete a decided batch that has no other sink."""
        self.commit(*committables, batch_id=batch_id)
        self.complete(batch_id, *committables)

    def announce(self, batch_id: int, *committables: Committable) -> None:
        """Report a batch as complete in every sink."""
        self.answered(self.sink().announce, batch_id, {self.name: committables}, {})

    def abort(self, committable: Committable) -> None:
        """Roll back one transaction."""
        self.answered(self.sink().abort, committable)

    def recover(self) -> list[Committable]:
        """Return the transactions that the sink lists as open."""
        sink = self.sink()
        return self.answered(lambda: list(sink.recover()))

    def sweep(self) -> None:
        """Roll back every open transaction until nothing new is open, as a coordinator does with undecided
        transactions."""
        aborted: list[Committable] = []
        while (found := self.recover()) and found != aborted:
            for committable in found:
                self.abort(committable)
            aborted = found


def answered(patience_s: float, call: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Repeat a call while it raises ``Retriable``, as a coordinator does, but only for ``patience_s``."""
    return until_answered("a test", call, *arguments, tell=_tell_nobody, patience_s=patience_s)


def error_of(call: Callable[..., object], *arguments: object) -> Exception | None:
    """Return the error that a call raises, or None. The caller checks the error, or only the call's effect."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001  # see above
        return error
    return None


def _tell_nobody(event: Event) -> None:
    """Report the event to no observer."""
