"""Files that survive a power cut, and put-if-absent: create a file whole, and only where there is none.

Public, for sinks and log stores. The commit log rests on put-if-absent: of two writers of one name, one wins, and the
other gets FileExistsError.

| place | how a file is created |
| --- | --- |
| ``disk.LocalFolder`` | written aside, synced, and linked into place, which fails where the name exists |
| ``remote.ObjectFolder`` | a conditional put; the store is tried first, as some servers ignore the condition |
| ``remote.RenamingFolder`` | written aside, closed, and renamed: HDFS refuses to rename to a name that exists |
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable

ASIDE = ".aside"
PROBE = ".probe"
ASIDE_LIVES_S = 3600
"""The time that a writer may take from its first byte to its link. After that, the file that it wrote aside counts as
left behind."""

_TRIAL_BYTES = bytes(range(256)) * 4  # the contents that a trial writes and reads back, as long as an entry


class Folder(ABC):
    """A folder of files that are created whole and durable, and only where there are none."""

    def __init__(self) -> None:
        self._leftovers: list[str] = []

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names in the folder, as the store lists them now; none where there is no folder."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""

    @abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the file, durable and whole or not at all. Make the folder where it is missing.

        Files that killed writers have left are removed, if ``names`` has seen them and they are older than an hour.

        Raises:
            FileExistsError: the name exists, durably. It may be this very file, where a client repeats a lost request.
            Unusable: the file was not created.
            Exception: any other is an unknown outcome.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Create or replace the file, whole. On a disk, a power cut may bring the old one back."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove the file, or do nothing where there is none."""

    @abstractmethod
    def sync(self, name: str) -> None:
        """Make ``name`` survive a power cut, whoever created it."""

    @abstractmethod
    def try_put_if_absent(self) -> None:
        """Make sure that a file is kept, returned and listed as it was written, and can't be created a second time.
        What the trial made is removed.

        Raises:
            Unusable: no log can be kept here, or this process may not write here.
            Exception: the store does not answer.
        """

    @abstractmethod
    def _written_s(self, name: str) -> float:
        """Return when a file was written, by the store's own clock."""

    def _see(self, names: list[str]) -> list[str]:
        """Note which of the listed names a killed writer may have left."""
        self._leftovers = [name for name in names if name.endswith((ASIDE, PROBE))]
        return names

    def _remove_leftovers(self, mine: str) -> None:
        """Remove what killed writers left. Judge age by the store's clock alone, so that no two machines' clocks are
        compared. A writer that only slept can't give its file a name any more: an unknown outcome, so it repeats."""
        leftovers, self._leftovers = self._leftovers, []
        for name in leftovers:
            with contextlib.suppress(Exception):  # costs room, nothing else
                if self._written_s(mine) - self._written_s(name) > ASIDE_LIVES_S:
                    self.remove(name)

    def _fault_of_a_trial(self, create: Callable[[str, bytes], None], name: str) -> str | None:
        """Create a file twice, read it back and look for it in the listing, as a log does with its entries. Return why
        no log can be kept here, or None."""
        is_created = False
        try:
            for _ in range(2):
                create(name, _TRIAL_BYTES)
                is_created = True
        except FileExistsError:
            try:
                kept = self.read(name)
            except FileNotFoundError:
                # A first create is also refused where its reply was lost and the client repeated it, but then it is
                # there.
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
