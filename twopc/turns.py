"""Admits a coordinator's callers one at a time, and rests only between two calls. After any error the coordinator is
closed, and the next call recovers first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from twopc import repetition
from twopc.effects import perform
from twopc.errors import ConfigurationError, Fenced, Retriable, RoundAborted
from twopc.performer import Performer
from twopc.phases import Phase
from twopc.retry import Waits
from twopc.threads import OwnedLock

ResultT = TypeVar("ResultT")


class Turns:
    """The locks that admit callers. Each is taken within a ``try``, so that no interrupt leaves it locked.

    ``start`` identifies a start of the query. A repeated failure counts once per start. Coordinators in several
    processes share the identifier if they belong to the same start.
    """

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self.start = uuid.uuid4().hex[:12]
        self.callers = OwnedLock()  # one public method at a time; a second caller is refused or waits
        self.batch_or_rest = OwnedLock()  # a rest is skipped while a batch runs, and a batch waits for a rest

    @property
    def is_mine(self) -> bool:
        """Whether this thread has a turn."""
        return self.callers.is_mine or self.batch_or_rest.is_mine

    def take(
        self, what: str, call: Callable[[], ResultT], *, waits: bool = True, batch_id: int | None = None
    ) -> ResultT:
        """Make a call while no other call and no rest is running. ``what`` names it in errors.

        Raises:
            ConfigurationError: this thread already has a turn, or another thread has a turn and ``waits`` is False.
            BaseException: what the call raised, or the error that ``explained`` returned for it.
        """
        within, performer = self.is_mine, self._performer
        try:
            if within or not self.callers.take(waits=waits):
                raise ConfigurationError(f"{what} came while a batch runs: call it when the batch has ended")
            self.batch_or_rest.take()
            try:
                if performer.phase is not Phase.IDLE:  # an interrupt may have come before ``fail``
                    performer.phase = Phase.CLOSED
                    performer.waits.given_up.set()
                performer.waits = Waits(performer.owner)  # only now: a rest still uses the earlier ones
                return call()
            except BaseException as error:
                meant: BaseException = error
                try:
                    # Here, while no rest can write to the log.
                    meant = self.explained(error, isinstance(error, Retriable | RoundAborted), batch_id)
                finally:
                    performer.fail(meant, batch_id)
                if meant is not error:
                    raise meant from error
                raise
        finally:
            # No Python function is called in between: an interrupt in it could leave a lock taken.
            if not within:
                try:
                    self.batch_or_rest.release()
                except RuntimeError:  # it was not taken
                    pass
                finally:
                    try:  # noqa: SIM105
                        self.callers.release()
                    except RuntimeError:
                        pass

    def rest(self, call: Callable[[], object]) -> None:
        """Make a call unless a batch or another rest is running, in any thread."""
        if self.batch_or_rest.is_mine:
            return
        try:
            if self.batch_or_rest.take(waits=False):
                call()
        except Fenced:
            raise
        except BaseException as error:
            if isinstance(meant := self.explained(error, is_asked_again=True), Fenced):
                raise meant from error
            self._performer.fail(error)
            raise
        finally:
            try:  # noqa: SIM105  # as in ``take``
                self.batch_or_rest.release()
            except RuntimeError:
                pass

    def explained(self, error: BaseException, is_asked_again: bool, batch_id: int | None = None) -> BaseException:
        """Look at the log, and return the error to raise for ``error`` (see ``repetition``)."""
        if not isinstance(error, Exception):
            return error
        performer = self._performer
        life, known = performer.life if performer.is_open else None, performer.tail_when_closed
        if life is not None and performer.phase is not Phase.CLOSED:
            steps = repetition.explained(life, error, is_asked_again, batch_id, self.start)
        else:
            steps = repetition.explained_when_closed(life, known, error, batch_id, self.start)
        return perform(steps, performer.do)
