"""Files in S3: a multipart upload that pre-commit holds open, and commit completes.

Its parts are durable when they are uploaded, and its object is not there for anybody before the upload is completed.
What any process needs to complete it is its id: S3 itself lists the parts. The client is s3fs, so that fsspec's
options and credentials work as everywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import fsspec
from botocore import exceptions as boto

from twopc.checks import CheckResult
from twopc_files.file_names import PENDING_FOLDER, FileHandle, owner_of_target
from twopc_files.stores.store import PendingFile, Sight

MARK = "twopc-transaction"
"""The key of the object's metadata that holds the exact transactional id. By it a repeated commit knows its own object,
whatever the bucket's encryption makes of the object's ETag."""

FIRST_PART_BYTES = 8 * 1024 * 1024
"""S3 takes parts of 5 MiB and more, the last one aside. A part is also what a task holds in memory of a file."""

FEWEST_DAYS = 7
"""What is decided must outlive the longest outage of its query, and a long weekend is nearly that."""

HIDDEN_S = 10.0
"""While a server assembles an object it may show neither upload nor object, or the upload without its parts: versitygw
renames the upload first, MinIO removes the metadata of its parts. It goes on when the client is gone, so no file counts
as lost before this time has passed. That delays only a query that is about to stop."""

ASSEMBLED_BYTES_PER_S = 16 * 1024 * 1024
"""A large file gets this much longer. Less than a server copies on a slow disk."""

PARTS_OF_ONE_SIZE = 1000
"""After so many the size doubles: the 10 000 parts that S3 allows then hold more than its largest object."""


_ENDS_UPLOADS = "AbortIncompleteMultipartUpload"

_GRANT = "Grant s3:GetObject on the objects below 'path', and s3:ListBucket on the bucket"
"""S3's answer to a HEAD has no body that would name what is missing."""

# S3 wants the checksums back that it was given, if a bucket or the option s3_additional_kwargs asks for any.
_CHECKSUMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
_OF_A_PART = ("PartNumber", "ETag", *(f"Checksum{name}" for name in _CHECKSUMS))


def part_bytes(number: int) -> int:
    """How long part ``number`` is, from 1 on, unless it is the last."""
    return FIRST_PART_BYTES << (number - 1) // PARTS_OF_ONE_SIZE


@dataclass(frozen=True, slots=True)
class S3:
    """A folder of a bucket.

    Attributes:
        bucket: its name.
        folder: the key of the folder, without a slash at its ends; "" for the bucket itself.
        storage_options: what s3fs is made with; credentials among them.
    """

    bucket: str
    folder: str
    storage_options: Mapping[str, Any] = field(repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.folder}".rstrip("/")

    @property
    def asks_at_once(self) -> int:
        return 16

    def located(self) -> tuple[Any, str]:
        fs = fsspec.filesystem("s3", **self.storage_options)  # fsspec keeps one for each process
        return fs, self.url.removeprefix("s3://")

    def meaning(self, error: Exception) -> OSError:
        return translated(error)

    def require_answer(self) -> None:
        self.call("list_multipart_uploads", Prefix=self._key(""), MaxUploads=1)

    def for_a_trial(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # a bucket has no folders

    def check(self) -> Iterator[CheckResult]:
        yield self._lists_open_uploads()
        yield self._keeps_open_uploads()
        yield from self._shows_objects()

    def _lists_open_uploads(self) -> CheckResult:
        """Whether the sweep can find what a killed writer leaves: MinIO lists an upload by its exact key alone, and by
        no key at all what it has in memory since its start."""
        what = "open uploads are listed by a part of their keys"
        key = self._key(f"{PENDING_FOLDER}/.{uuid.uuid4().hex}.probe")
        try:
            upload = self.call("create_multipart_upload", Key=key)["UploadId"]
            try:
                listed = self.call("list_multipart_uploads", Prefix=key[:-1]).get("Uploads", ())
            finally:
                self.call("abort_multipart_upload", Key=key, UploadId=upload)
        except OSError as error:
            return CheckResult.warned(what, f"It could not be tried: {error}.")
        if any(found["UploadId"] == upload for found in listed):
            return CheckResult.passed(what)
        return CheckResult.warned(
            what,
            "They are not, as on MinIO. Uploads of killed writers are seen by no reader and found by no sweep: they"
            " take up the server's disk until it removes them. MinIO removes every upload that is older than"
            " MINIO_API_STALE_UPLOADS_EXPIRY, 24 hours by default, and with it a decided batch whose query was down"
            f" for that long. Set it to more than any outage has, such as {FEWEST_DAYS * 24}h, and leave room for"
            " uploads of that age.",
        )

    def _keeps_open_uploads(self) -> CheckResult:
        what = f"no lifecycle rule removes open uploads before they are {FEWEST_DAYS} days old"
        try:
            rules = self.call("get_bucket_lifecycle_configuration")["Rules"]
        except FileNotFoundError:
            rules = []
        except OSError as error:
            advice = f"They can't be seen: {error}. Grant s3:GetLifecycleConfiguration, or have a look at them."
            return CheckResult.warned(what, advice)
        days = [rule[_ENDS_UPLOADS]["DaysAfterInitiation"] for rule in rules if self._ends_uploads(rule)]
        if min(days, default=FEWEST_DAYS) < FEWEST_DAYS:
            advice = (
                f"A rule deletes incomplete uploads after {min(days)} day{'s' if min(days) > 1 else ''}. If the query"
                " is down for longer than that, a decided batch is lost. Raise DaysAfterInitiation of"
                f" {_ENDS_UPLOADS} to more days than any outage lasts."
            )
            return CheckResult.warned(what, advice)
        return CheckResult.passed(what)

    def _ends_uploads(self, rule: Mapping[str, Any]) -> bool:
        """Whether it removes uploads of this folder, or of a part of it."""
        prefix, here = rule.get("Filter", rule).get("Prefix", ""), self._key("")
        return rule["Status"] == "Enabled" and _ENDS_UPLOADS in rule and here[: len(prefix)] == prefix[: len(here)]

    def _shows_objects(self) -> Iterator[CheckResult]:
        """Look at one object of the folder, as a commit looks at what it has published. A folder without objects yields
        nothing: S3 answers 404 there, with or without s3:GetObject."""
        what = "an object of the folder can be looked at"
        try:
            for listed in self.call("list_objects_v2", Prefix=self._key(""), MaxKeys=1).get("Contents", ()):
                self._head(listed["Key"])
                yield CheckResult.passed(what)
        except PermissionError as error:
            advice = f"S3 refuses it: {error}. A commit looks at the object that it has published. {_GRANT}"
            yield CheckResult.failed(what, advice)
        except OSError as error:
            yield CheckResult.warned(what, f"It could not be tried: {error}.")

    def create(self, transaction_id: str, number: int, target: str) -> S3File:  # noqa: ARG002  # an upload has its own id
        mark = {MARK: transaction_id}
        upload = self.call("create_multipart_upload", Key=self._key(target), Metadata=mark)["UploadId"]
        return S3File(self, FileHandle(transaction_id, upload, target))

    def owns(self, file: FileHandle) -> bool:
        """An upload's id does not name its owner. It is used only together with the target's key, which does."""
        return bool(file.target) and file.pending.isascii() and file.pending.isprintable()

    def where(self, file: FileHandle) -> str:
        return f"upload {file.pending} to {self.url}/{file.target}"

    def look(self, file: FileHandle) -> Sight:
        # In this order, which upholds what the store promises of a look.
        parts, target = self._parts(file), self._object(file)
        pending_bytes = sum(part["Size"] for part in parts) if parts else None
        is_whole = target is None and pending_bytes == file.size_bytes
        if is_whole and file.parts != digest(part["ETag"] for part in parts):
            raise OSError(errno.EIO, f"the upload has {len(parts)} parts, which are not those that were pre-committed")
        return Sight(
            pending_bytes=pending_bytes,
            target_bytes=None if target is None else target["ContentLength"],
            is_foreign=target is not None and _mark(target) != file.transaction_id,
            parts=tuple({key: part[key] for key in _OF_A_PART if key in part} for part in parts),
        )

    def may_hide_s(self, file: FileHandle) -> float:
        return HIDDEN_S + (file.size_bytes or 0) / ASSEMBLED_BYTES_PER_S

    def obstacle(self, file: FileHandle) -> str | None:  # noqa: ARG002  # S3 checks rights when they are used
        return None

    def publish(self, file: FileHandle, seen: Sight) -> None:
        self.call(
            "complete_multipart_upload",
            Key=self._key(file.target),
            UploadId=file.pending,
            MultipartUpload={"Parts": list(seen.parts)},
        )
        # Only the object proves it. S3 sends 200 before it begins. versitygw 1.8.0 that was killed amid a completion
        # answers every repeat with 200, also the client's own, and never publishes the object.
        try:
            target = self._object(file)
        except PermissionError as error:
            raise OSError(
                errno.EIO,
                "S3 accepted the completion, so the file is published as far as can be known, and refuses a look at"
                f" it: {error.strerror}",
            ) from error
        if target is None or (target["ContentLength"], _mark(target)) != (file.size_bytes, file.transaction_id):
            raise OSError(errno.EAGAIN, f"{self.url}/{file.target} is not there yet, though S3 accepted its completion")

    def rehearse(self, file: FileHandle) -> None:
        """Completing an upload needs the same right as its parts. The look at the object needs s3:GetObject, which only
        an object can show: ``check`` looks at one if there is one. None is made, as it might not be removed again."""

    def settle(self, file: FileHandle) -> None:
        """A completed upload is durable, and gone."""

    def discard(self, file: FileHandle) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call("abort_multipart_upload", Key=self._key(file.target), UploadId=file.pending)

    def pending(self) -> Iterable[FileHandle]:
        prefix = self._key("")
        for upload in self._pages("list_multipart_uploads", "Uploads", ("KeyMarker", "UploadIdMarker"), Prefix=prefix):
            target = upload["Key"].removeprefix(prefix)
            if owner := owner_of_target(target):
                yield FileHandle(owner, upload["UploadId"], target)

    def call(self, method: str, **arguments: object) -> dict[str, Any]:
        """Ask S3 something.

        Raises:
            FileNotFoundError: there is no such upload or object.
            OSError: any other error; its number has the meaning for a commit.
        """
        fs, _ = self.located()
        try:
            answer: dict[str, Any] = fs.call_s3(method, Bucket=self.bucket, **arguments)
        except Exception as error:
            raise translated(error) from error
        return answer

    def _parts(self, file: FileHandle) -> list[dict[str, Any]]:
        """The parts of an upload. None are left where it is gone, or its server has taken it apart: pre-commit uploads
        one at least."""
        key = {"Key": self._key(file.target), "UploadId": file.pending}
        try:
            return list(self._pages("list_parts", "Parts", ("PartNumberMarker",), **key))
        except FileNotFoundError:
            return []

    def _object(self, file: FileHandle) -> dict[str, Any] | None:
        try:
            return self._head(self._key(file.target))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise OSError(errno.EACCES, f"{error.strerror}. {_GRANT}") from error

    def _head(self, key: str) -> dict[str, Any]:
        return self.call("head_object", Key=key)

    def _pages(self, method: str, entries: str, markers: tuple[str, ...], **arguments: object) -> Iterator[Any]:
        while True:
            page = self.call(method, **arguments)
            yield from page.get(entries, ())
            if not page.get("IsTruncated"):
                return
            arguments |= {marker: page[f"Next{marker}"] for marker in markers}

    def _key(self, below: str) -> str:
        return f"{self.folder}/{below}".lstrip("/")


class S3File(PendingFile):
    """An upload that grows by a part at a time."""

    buffer_bytes = 2 * FIRST_PART_BYTES  # the part that fills, and for a moment the one that goes up

    def __init__(self, store: S3, handle: FileHandle) -> None:
        self.handle = handle
        self._store = store
        self._buffer = bytearray()
        self._size_bytes = 0
        self._etags: list[str] = []

    def write(self, data: Any) -> int:
        with memoryview(data).cast("B") as view:
            taken = 0
            while taken < len(view):
                room = part_bytes(len(self._etags) + 1) - len(self._buffer)
                self._buffer += view[taken : taken + room]
                taken += room
                if len(self._buffer) == part_bytes(len(self._etags) + 1):
                    self._upload_part()
            self._size_bytes += len(view)
            return len(view)

    def tell(self) -> int:
        return self._size_bytes

    def made_durable(self) -> FileHandle:
        if self._buffer or not self._etags:
            self._upload_part()
        return replace(self.handle, size_bytes=self._size_bytes, parts=digest(self._etags))

    def discard(self) -> None:
        self._buffer.clear()
        self._store.discard(self.handle)

    def _upload_part(self) -> None:
        answer = self._store.call(
            "upload_part",
            Key=self._store._key(self.handle.target),  # noqa: SLF001  # the other half of one module
            UploadId=self.handle.pending,
            PartNumber=len(self._etags) + 1,
            Body=self._buffer,
        )
        self._etags.append(answer["ETag"])
        self._buffer = bytearray()


def _mark(target: Mapping[str, Any]) -> str | None:
    """The transactional id in an object's metadata."""
    mark: str | None = target["Metadata"].get(MARK)
    return mark


def digest(etags: Iterable[str]) -> str:
    """Tells one list of parts from any other, in a size that does not grow with the file."""
    return hashlib.sha256("\n".join(etags).encode()).hexdigest()


_ABSENT = frozenset(("NoSuchUpload", "NoSuchKey", "NoSuchLifecycleConfiguration", "404"))

_DENIED = frozenset(("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"))
"""Refusals of credentials that S3 does not answer with 401 or 403."""

_BUSY = frozenset(("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted"))
"""S3 returns some of them with 200, 400 or 409."""

_NO_ANSWER = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
)

_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound)


def translated(error: Exception) -> OSError:
    """Translate an error of S3 or its client to one whose number has the meaning for a commit."""
    cause = error.__cause__ if isinstance(error.__cause__, boto.ClientError) else error  # s3fs chains the original
    text = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, boto.ClientError):
        code, status = cause.response["Error"].get("Code", ""), cause.response["ResponseMetadata"]["HTTPStatusCode"]
        return OSError(_meaning(code, status), text)
    if isinstance(cause, _NO_ANSWER):
        return OSError(errno.ETIMEDOUT, text)
    return OSError(errno.EACCES if isinstance(cause, _NO_CREDENTIALS) else errno.EIO, text)


def _meaning(code: str, status: int) -> int:
    if code in _ABSENT:
        return errno.ENOENT
    if code == "NoSuchBucket":
        return errno.ENODEV
    if code == "KeyTooLongError":
        return errno.ENAMETOOLONG
    if code in _BUSY or status in (408, 429) or status >= 500:
        return errno.EBUSY
    if code in _DENIED or status in (401, 403):
        return errno.EACCES
    return errno.EIO
