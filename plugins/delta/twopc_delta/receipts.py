"""A sink's receipt: the position of its newest committed batch in a table's log. Later processes compare it with the
log.

A committed batch can be lost if the table is restored from a copy, or if another writer renames its own entry over the
batch's entry. The table then shows an older mark, and without the receipt the next batch would follow a gap.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, astuple, dataclass

import orjson

from twopc.stores.disk import LocalFolder
from twopc.stores.remote import ObjectFolder
from twopc_delta.notes import replace_durably
from twopc_delta.storage import NOTES, Storage

RECEIPT = ".receipt"
"""The suffix of a receipt's name."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position of a batch in a table's log.

    Attributes:
        table: the table's id.
        batch: the batch's id, as in the sink's mark.
        version: the version of the log.
        entry: the digest of this version's entry.
    """

    table: str
    batch: int
    version: int
    entry: str


class Receipts:
    """The receipt of one sink, beside the notes.

    Args:
        storage: the table's folder.
        mark: the name of the sink's mark.
    """

    def __init__(self, storage: Storage, mark: str) -> None:
        self._storage = storage
        self._name = mark + RECEIPT
        self.place = f"{storage.url}/{NOTES}/{self._name}"
        self._newest: Receipt | None = None
        self._is_read = False

    @functools.cached_property
    def _folder(self) -> LocalFolder | ObjectFolder:
        return self._storage.notes()  # created lazily, where its errors are handled: a client may fetch credentials

    def newest(self) -> Receipt | None:
        """Return the receipt; None if no batch was committed, or if an operator has removed the receipt. The receipt is
        read once per process.

        Raises:
            ValueError: the receipt is damaged.
        """
        if not self._is_read:
            self._newest, self._is_read = self._read(), True
        return self._newest

    def _read(self) -> Receipt | None:
        if (data := self._storage.content(self._folder, self._name)) is None:
            return None
        try:
            found = Receipt(**orjson.loads(data))
        except TypeError as error:
            raise ValueError(str(error)) from None
        if not all(isinstance(value, type) for value, type in zip(astuple(found), (str, int, int, str), strict=True)):
            raise ValueError("a value has another type")
        return found

    def forget(self) -> None:
        """Reread the receipt before its next use."""
        self._is_read = False

    def write(self, receipt: Receipt) -> None:
        """Replace the receipt. A power cut may bring back the previous one, which is still valid."""
        self._newest, self._is_read = receipt, True
        with self._storage.meaning():
            replace_durably(self._folder, self._name, orjson.dumps(asdict(receipt)))
