"""Calls to target systems that may take long or never return. Each runs on a thread, while lines report the wait.

A call that runs out of time is abandoned, and the process ends. To the log and the target systems this looks like a
crash. A crash is safe at every instruction of a command, as it is for a driver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import twopc
from twopc.errors import Retriable
from twopc.events import CallRetried, Event, PhaseEntered, TransactionCommitted, TransactionReplayed

FIRST_WORD_S = 2.0
"""The wait before the first line, when an operator begins to wonder. Each later pause is twice as long."""

STEP_S = 0.5

ResultT = TypeVar("ResultT")


class NoAnswer(Retriable):
    """A target system did not answer within the caller's time limit."""


class _LastWarning(logging.Handler):
    """Keeps the newest warning of a client library, which says why its attempts failed. Ignores twopc's own warnings,
    which are reported by events."""

    text = ""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("twopc."):
            self.text = record.getMessage()


class Waiting:
    """Runs calls one after the other, within a total of ``timeout_s``."""

    def __init__(self, timeout_s: float, say: Callable[[str], None]) -> None:
        self._timeout_s = timeout_s
        self._left_s = timeout_s
        self._say = say
        self._call = ""
        self._for = ""
        self._warning = _LastWarning()

    def call(self, what: str, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return ``function(*arguments)``. ``what`` names the call in output and errors. Raises NoAnswer: the call
        takes too long."""
        self._for = self._call = what
        answer = Future[ResultT]()

        def run() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001  # re-raised in the caller's thread
                answer.set_exception(error)

        started = time.monotonic()
        self._warning.text = ""
        logging.getLogger().addHandler(self._warning)
        threading.Thread(target=run, name="twopc-cli", daemon=True).start()
        try:
            self._wait(answer)
        finally:
            logging.getLogger().removeHandler(self._warning)
            self._left_s -= time.monotonic() - started
        return answer.result(0)

    def _wait(self, answer: Future[Any]) -> None:
        started, next_word_s = time.monotonic(), FIRST_WORD_S
        # In short steps, as Python handles a Ctrl-C that arrives just before a wait only after it.
        while True:
            step_s = min(STEP_S, max(0.0, min(next_word_s, self._left_s) - (time.monotonic() - started)))
            if wait([answer], step_s).done:
                return
            waited_s = time.monotonic() - started
            if waited_s >= self._left_s:
                warning = f" The last warning of its client: {self._warning.text}." if self._warning.text else ""
                raise NoAnswer(
                    f"no answer within {self._timeout_s:g} s while {self._for}.{warning} Check that the target system"
                    " is up, and that its options are right. Stopping here is as safe as a crash. Run the command"
                    " again, with a longer --timeout-s if the target system is only slow."
                )
            if waited_s >= next_word_s:
                self._say(f"{self._for}: {waited_s:.0f} s, {self._left_s - waited_s:.0f} s left")
                next_word_s *= 2

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Take the coordinator's current step as the reason for the wait."""
        match event:
            case PhaseEntered(phase, _):
                self._for = f"the coordinator is {phase.value}"
            case CallRetried(what, attempt, _, reason):
                self._for = f"{self._call}: {what} (attempt {attempt}: {reason})"
            case TransactionCommitted(sink, batch_id, committable, _):
                self._for = f"committing batch {batch_id}, after {committable.transaction_id} of sink {sink!r}"
            case TransactionReplayed(sink, batch_id, _, replacement):
                self._for = f"writing batch {batch_id} again, after {replacement.transaction_id} of sink {sink!r}"
            case _:
                pass
