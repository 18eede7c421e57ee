"""Files in Google Cloud Storage: each pending file is an object, which a commit rewrites under its final name.

A rewrite succeeds only if the target does not exist. The store checks this condition, so a late request does no harm.
The rewritten object keeps the metadata, which name the transaction.

Uploads are not held open as on S3: anyone who knows an upload's URL can write the object, so the commit log would
contain a secret.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twopc.stores.gcs import gcs_client
from twopc_files.file_names import PENDING_FOLDER, FileHandle, pending_name
from twopc_files.stores.remote import RemoteFile
from twopc_files.stores.store import MARK, Bucket, Sight

_LONGEST_NAME = 1024
"""The most bytes that an object's name may have in UTF-8."""


@dataclass(frozen=True, slots=True)
class Gcs(Bucket):
    """A folder of a bucket of Google Cloud Storage, with gcsfs's arguments."""

    protocol = "gs"

    def located(self) -> tuple[Any, str]:
        try:
            fs = gcs_client({**self.storage_options, "use_listings_cache": False})  # fsspec keeps one per process
        except ValueError as error:
            raise OSError(errno.EACCES, f"its client can't be made ({error})") from None
        return fs, self.url.removeprefix("gs://")

    def require_answer(self) -> None:
        self._page(self.key(""), maxResults=1)

    def create(self, transaction_id: str, number: int, target: str) -> RemoteFile:
        fs, folder = self.located()
        name = pending_name(transaction_id, number)
        opened = fs.open(f"{folder}/{PENDING_FOLDER}/{name}", "wb", metadata={MARK: transaction_id})
        return RemoteFile(self, FileHandle(transaction_id, name, target), opened)

    def look(self, file: FileHandle) -> Sight:
        pending = self.found(_pending(file))
        seen = self.sight(file, pending[0] if pending else None)
        if seen.pending_bytes is seen.target_bytes is None:
            self.require_answer()  # raises if the bucket is gone
        return seen

    def obstacle(self, file: FileHandle) -> str | None:
        # Other object stores get the final name when the file is created.
        length = len(self.key(file.target).encode())
        if length <= _LONGEST_NAME:
            return None
        return f"its name has {length} bytes, and GCS takes {_LONGEST_NAME}. Partition by columns with shorter values."

    def publish(self, file: FileHandle, seen: Sight) -> None:  # noqa: ARG002  # the names are enough
        with contextlib.suppress(FileExistsError):  # the check below shows whose object it is
            self._rewrite(_pending(file), file.target)
        self.require_target(file)

    def rehearse(self, file: FileHandle) -> None:
        self._remove(file.pending)  # a killed process may have left it
        self._rewrite(_pending(file), file.pending)
        self._remove(file.pending)

    def discard(self, file: FileHandle) -> None:
        self._remove(_pending(file))

    def pending_names(self) -> Iterator[str]:
        prefix, token = self.key(f"{PENDING_FOLDER}/"), None
        while True:
            page = self._page(prefix, pageToken=token)
            for listed in page.get("items", ()):
                yield listed["name"].removeprefix(prefix)
            if not (token := page.get("nextPageToken")):
                return

    def _rewrite(self, below: str, target: str) -> None:
        """Copy an object within this folder. Raises FileExistsError if the target exists."""
        token = None
        while True:
            answer = self._call(
                "POST",
                "b/{}/o/{}/rewriteTo/b/{}/o/{}",
                *(self.bucket, self.key(below), self.bucket, self.key(target)),
                headers={"Content-Type": "application/json"},
                ifGenerationMatch="0",
                rewriteToken=token,
            )
            if answer["done"]:
                return
            token = answer["rewriteToken"]

    def found(self, below: str) -> tuple[int, str | None] | None:
        with contextlib.suppress(FileNotFoundError):
            found = self._call("GET", "b/{}/o/{}", self.bucket, self.key(below))
            return int(found["size"]), found.get("metadata", {}).get(MARK)
        return None

    def _remove(self, below: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.located()[0].call("DELETE", "b/{}/o/{}", self.bucket, self.key(below))

    def _page(self, prefix: str, **parameters: object) -> dict[str, Any]:
        try:
            return self._call("GET", "b/{}/o", self.bucket, prefix=prefix, **parameters)
        except FileNotFoundError as error:
            raise OSError(errno.ENODEV, f"there is no bucket {self.bucket!r}") from error

    def _call(self, *request: str, **parameters: object) -> dict[str, Any]:
        """Send a request of the JSON API. Raises the errors of ``twopc.stores.gcs``."""
        answer: dict[str, Any] = self.located()[0].call(*request, json_out=True, **parameters)
        return answer


def _pending(file: FileHandle) -> str:
    return f"{PENDING_FOLDER}/{file.pending}"
