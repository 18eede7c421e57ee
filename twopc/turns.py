"""The turns of a coordinator: one call at a time, and a rest only between two. After any error the coordinator is
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
    """Who is admitted. An interrupt at any moment leaves no lock taken, so each is taken within a ``try``.

    ``start`` is what a repeated failure counts by. Coordinators in several processes have one if they serve one start.
    """

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self.start = uuid.uuid4().hex[:12]
        self.callers = OwnedLock()  # of public methods, of which a second is refused or waits
        self.batch_or_rest = OwnedLock()  # a rest is skipped while a batch runs, and a batch waits for a rest

    @property
    def is_mine(self) -> bool:
        """Whether this thread is amid a turn."""
        return self.callers.is_mine or self.batch_or_rest.is_mine

    def take(
        self, what: str, call: Callable[[], ResultT], *, waits: bool = True, batch_id: int | None = None
    ) -> ResultT:
        """Make a call when no other one, and no rest, is under way. ``what`` names it to the caller.

        Raises:
            ConfigurationError: this thread has a turn, or another thread has one and ``waits`` is False.
            BaseException: what the call raised, or what that means.
        """
        within, performer = self.is_mine, self._performer
        try:
            if within or not self.callers.take(waits=waits):
                raise ConfigurationError(f"{what} came while a batch runs: call it when the batch has ended")
            self.batch_or_rest.take()
            try:
                if performer.phase is not Phase.IDLE:  # an interrupt may have come before an error was noted
                    performer.phase = Phase.CLOSED
                    performer.waits.given_up.set()
                performer.waits = Waits(performer.owner)  # not before: a rest waits by those that it began with
                return call()
            except BaseException as error:
                meant: BaseException = error
                try:
                    # While no rest can write to the log.
                    meant = self.explained(error, isinstance(error, Retriable | RoundAborted), batch_id)
                finally:
                    performer.fail(meant, batch_id)
                if meant is not error:
                    raise meant from error
                raise
        finally:
            # No function in Python between, in which an interrupt could leave one taken.
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
        """Make a call unless a batch or another rest is under way, in this thread or another one."""
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
        """Return what an error means when the log has been looked at (``repetition``)."""
        if not isinstance(error, Exception):
            return error
        performer = self._performer
        life, known = performer.life if performer.is_open else None, performer.tail_when_closed
        if life is not None and performer.phase is not Phase.CLOSED:
            steps = repetition.explained(life, error, is_asked_again, batch_id, self.start)
        else:
            steps = repetition.explained_when_closed(life, known, error, batch_id, self.start)
        return perform(steps, performer.do)
