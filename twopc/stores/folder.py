"""Files that survive a power cut, and put-if-absent: create a file whole, and only if its name is free.

Public, for sinks and log stores. The commit log rests on put-if-absent: one of two writers of a name wins, and the
other gets FileExistsError.

| folder | how a file is created |
| --- | --- |
| ``disk.LocalFolder`` | written aside, synced, and linked into place, which fails if the name exists |
| ``remote.ObjectFolder`` | a conditional put, after a trial, because some servers ignore the condition |
| ``remote.RenamingFolder`` | written aside, closed, and renamed: HDFS refuses to rename to an existing name |
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable

ASIDE = ".aside"
PROBE = ".probe"
ASIDE_LIVES_S = 3600
"""How old a temporary file must be to count as left behind by a killed writer. A writer has this long to link or rename
its file into place."""

_TRIAL_BYTES = bytes(range(256)) * 4  # the contents of a trial, as long as an entry


class Folder(ABC):
    """A folder of files that are created whole and durable, and only if their names are free."""

    def __init__(self) -> None:
        self._leftovers: list[str] = []

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names in the folder, as the store lists them now; none if there is no folder."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""

    @abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the file: durable and complete, or not at all. Create the folder if it is missing.

        Removes leftovers of killed writers that ``names`` has seen, if they are older than an hour.

        Raises:
            FileExistsError: the name exists, durably. The existing file may be this very one, if a client repeats a
                lost request.
            Unusable: the file was not created.
            Exception: any other error; the outcome is unknown.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Create or replace the whole file. On a disk, a power cut may bring back the old one."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove the file, or do nothing if there is none."""

    @abstractmethod
    def sync(self, name: str) -> None:
        """Make ``name`` survive a power cut, whoever created it."""

    @abstractmethod
    def try_put_if_absent(self) -> None:
        """Check that a file is kept, returned and listed as it was written, and can't be created again. The trial's
        files are removed.

        Raises:
            Unusable: the folder can't keep a log, or this process may not write there.
            Exception: the store does not answer.
        """

    @abstractmethod
    def _written_s(self, name: str) -> float:
        """Return when a file was written, by the store's own clock."""

    def _see(self, names: list[str]) -> list[str]:
        """Record which of the listed files a killed writer may have left behind."""
        self._leftovers = [name for name in names if name.endswith((ASIDE, PROBE))]
        return names

    def _remove_leftovers(self, mine: str) -> None:
        """Remove leftovers of killed writers. Their age is measured by the store's clock alone, so that clocks of
        different machines are never compared. If a writer was only asleep, it can no longer give its file the final
        name. The outcome of that attempt is unknown, so the writer tries again."""
        leftovers, self._leftovers = self._leftovers, []
        for name in leftovers:
            with contextlib.suppress(Exception):  # leftovers only cost space
                if self._written_s(mine) - self._written_s(name) > ASIDE_LIVES_S:
                    self.remove(name)

    def _fault_of_a_trial(self, create: Callable[[str, bytes], None], name: str) -> str | None:
        """Create a file twice, read it back and look for it in the listing, as a log does with its entries. Return the
        reason why the folder can't keep a log, or None."""
        is_created = False
        try:
            for _ in range(2):
                create(name, _TRIAL_BYTES)
                is_created = True
        except FileExistsError:
            try:
                kept = self.read(name)
            except FileNotFoundError:
                # A first create is also refused if its reply was lost and the client repeated it, but then the file
                # exists.
                return "it loses a file" if is_created else "it refuses to create a file even where there is none"
            if kept != _TRIAL_BYTES:
                return (
                    f"it returns other contents ({len(kept)} bytes) than the {len(_TRIAL_BYTES)} bytes that were"
                    " written"
                )
            return None if name in self.names() else "it does not list a file that was just created"
        return "it overwrites a file that it was asked to create only where there is none"


def hidden(suffix: str) -> str:
    """Return a new name that readers of data sets skip."""
    return f".{uuid.uuid4().hex}{suffix}"
