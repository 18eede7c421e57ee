"""The interface of a store of files."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from twopc.checks import CheckResult
from twopc_files.file_names import FileHandle

NO_FILE = -1
"""The size of something that is no file, such as a folder or a link."""


class PendingFile(io.RawIOBase):
    """A pending file: not yet committed, binary, written from start to end, seen by no reader.

    Attributes:
        handle: its entry in a committable; complete after ``close``.
        buffer_bytes: what it holds in memory at most before it goes to the store.
    """

    handle: FileHandle
    buffer_bytes: int = 0

    def writable(self) -> bool:
        return True

    @abstractmethod
    def tell(self) -> int:
        """Bytes written so far."""

    def close(self) -> None:
        """Make all that was written durable. Raises OSError where any of it is not."""
        if not self.closed:
            self.handle = self.made_durable()
            super().close()

    @abstractmethod
    def made_durable(self) -> FileHandle:
        """Do what ``close`` promises, and return the complete handle."""

    @abstractmethod
    def discard(self) -> None:
        """Remove it, closed or not, or do nothing where it is gone."""

    def __del__(self) -> None:
        """Nothing is made durable by being forgotten."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a store shows of one file, in bytes; None where it definitely has nothing.

    Attributes:
        pending_bytes: size of the pending file.
        target_bytes: size of the file with the target's name.
        is_foreign: the file with the target's name is known to be another's.
        parts: the parts of the pending file, as the store asks for them when it publishes.
    """

    pending_bytes: int | None
    target_bytes: int | None
    is_foreign: bool = False
    parts: tuple[Mapping[str, Any], ...] = ()


class Store(Protocol):
    """One place for files. A value: it travels to the participants with its sink, and its repr shows no credentials.

    It only acts and reports. ``outcomes.py`` decides what follows. Every method but ``owns`` and
    ``where`` may raise OSError, whose ``errno`` has the meaning that it has in ``outcomes.py``, whatever the store.
    """

    @property
    def url(self) -> str:
        """The folder of committed files."""

    @property
    def asks_at_once(self) -> int:
        """How many questions to ask it at the same time."""

    def located(self) -> tuple[Any, str]:
        """Fsspec's file system, and the folder of committed files on it."""

    def meaning(self, error: Exception) -> OSError:
        """Translate an error of its client to one whose number has the meaning."""

    def require_answer(self) -> None:
        """Whether it is there and answers; changes nothing."""

    def for_a_trial(self) -> AbstractContextManager[None]:
        """Have the folder, and the one for pending files. Those that were missing, and are still empty, are removed
        again."""

    def check(self) -> Iterable[CheckResult]:
        """The checks of this kind of store alone."""

    def create(self, transaction_id: str, number: int, target: str) -> PendingFile:
        """A new, empty file, the ``number``-th of its transaction, that is to be published as ``target``."""

    def owns(self, file: FileHandle) -> bool:
        """Whether ``file.pending`` can be one of this store and of this transaction: a wrong one would commit, or
        remove, the file of another."""

    def where(self, file: FileHandle) -> str:
        """Where the pending file is and where it goes, in words."""

    def look(self, file: FileHandle) -> Sight:
        """What is there. Upholds: a file that is published meanwhile is seen in both places, and never in none, or
        in part, for longer than ``may_hide_s``."""

    def may_hide_s(self, file: FileHandle) -> float:
        """For how many seconds the store may show neither the target nor the whole pending file while it publishes."""

    def obstacle(self, file: FileHandle) -> str | None:
        """What else would keep this process from publishing it, and what to do about it."""

    def publish(self, file: FileHandle, seen: Sight) -> None:
        """Make the pending file the target, at once for every reader. Only after ``look`` has seen the first and not
        the second.

        Upholds: on return the target has been seen, whole and the transaction's own. What the store answers to the
        request proves nothing.
        """

    def settle(self, file: FileHandle) -> None:
        """Make the publication durable and remove its remains; also of one that another process made."""

    def rehearse(self, file: FileHandle) -> None:
        """Do what ``publish`` does, under a hidden name that is removed again; where that needs a right or a place that
        writing has not shown to be there."""

    def discard(self, file: FileHandle) -> None:
        """Remove the pending file, never a target; or do nothing where it is gone."""

    def pending(self) -> Iterable[FileHandle]:
        """Every pending file, of any sink."""
