"""Files in S3: each pending file is a multipart upload, which stays open after pre-commit and is completed on commit.

Parts are durable when their upload returns. No reader sees the object before the upload is completed. Any process can
complete the upload by its id, as S3 itself lists the parts. The client is s3fs, so fsspec's options and credentials
work as everywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import fsspec

from twopc.checks import CheckResult
from twopc.stores.s3 import translate
from twopc_files.file_names import PENDING_FOLDER, FileHandle, owner_of_target
from twopc_files.stores.store import MARK, Bucket, FileOfParts, Sight

FEWEST_DAYS = 7
"""The fewest days after which a lifecycle rule may delete incomplete uploads. A decided batch must outlive the longest
outage of its query, such as a long weekend."""

HIDDEN_S = 10.0
"""How long a file may be invisible before it counts as lost. While a server assembles an object, it may show neither
upload nor object, or the upload without its parts: versitygw renames the upload first, MinIO removes the metadata of
its parts. The server continues even if the client is gone. The wait only delays a query that is about to stop."""

ASSEMBLED_BYTES_PER_S = 16 * 1024 * 1024
"""A large file may be invisible for one more second per this many bytes. Servers copy faster, even on a slow disk."""

_ENDS_UPLOADS = "AbortIncompleteMultipartUpload"

_GRANT = "grant s3:GetObject on the objects below 'path', and s3:ListBucket on the bucket"
"""Advice for a refused HEAD request. S3's reply has no body, so it does not name the missing permission."""

# S3 requires each part's checksums again on completion if the bucket or s3_additional_kwargs requires checksums.
_CHECKSUMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
_OF_A_PART = ("PartNumber", "ETag", *(f"Checksum{name}" for name in _CHECKSUMS))


@dataclass(frozen=True, slots=True)
class S3(Bucket):
    """A folder of a bucket of S3, with s3fs's arguments."""

    protocol = "s3"

    def located(self) -> tuple[Any, str]:
        fs = fsspec.filesystem("s3", **self.storage_options)  # fsspec keeps one client per process
        return fs, self.url.removeprefix("s3://")

    def require_answer(self) -> None:
        self.call("list_multipart_uploads", Prefix=self.key(""), MaxUploads=1)

    def check(self) -> Iterator[CheckResult]:
        yield self._lists_open_uploads()
        yield self._keeps_open_uploads()
        yield from self._shows_objects()

    def _lists_open_uploads(self) -> CheckResult:
        """Check whether a sweep can find the uploads of killed writers. MinIO lists an upload only for its exact key.
        Without a key, MinIO lists only the uploads that it has kept in memory since its start."""
        check = f"list of open uploads in bucket {self.bucket!r}, by key prefix"
        folder = self.key(f"{PENDING_FOLDER}/.{uuid.uuid4().hex}/")
        key = f"{folder}probe"
        try:
            upload = self.call("create_multipart_upload", Key=key)["UploadId"]
            try:
                listed = self.call("list_multipart_uploads", Prefix=folder).get("Uploads", ())
            finally:
                self.call("abort_multipart_upload", Key=key, UploadId=upload)
        except OSError as error:
            return _unknown_result(check, error)
        if any(found["UploadId"] == upload for found in listed):
            return CheckResult.passed(check)
        return CheckResult.warning(
            check,
            "uploads are listed only by their exact keys, as by MinIO: no sweep finds those of killed writers, which"
            " take up the server's disk, and MinIO removes every upload older than MINIO_API_STALE_UPLOADS_EXPIRY (24"
            " hours by default), including a decided batch whose query was down for that long",
            f"set that to more than any outage lasts, such as {FEWEST_DAYS * 24}h, and leave room for uploads of that"
            " age",
        )

    def _keeps_open_uploads(self) -> CheckResult:
        check = f"lifecycle rules of bucket {self.bucket!r} for open uploads"
        try:
            rules = self.call("get_bucket_lifecycle_configuration")["Rules"]
        except FileNotFoundError:
            rules = []
        except OSError as error:
            return CheckResult.warning(
                check,
                f"not readable: {error}",
                f"grant s3:GetLifecycleConfiguration, or make sure that no rule with {_ENDS_UPLOADS} has fewer than"
                f" {FEWEST_DAYS} days",
            )
        days = [rule[_ENDS_UPLOADS]["DaysAfterInitiation"] for rule in rules if self._ends_uploads(rule)]
        if min(days, default=FEWEST_DAYS) < FEWEST_DAYS:
            return CheckResult.warning(
                check,
                f"a rule deletes incomplete uploads after {min(days)} day{'s' if min(days) > 1 else ''}: if the query"
                " is down for longer, a decided batch is lost",
                f"raise DaysAfterInitiation of {_ENDS_UPLOADS} to more days than any outage lasts",
            )
        return CheckResult.passed(check)

    def _ends_uploads(self, rule: Mapping[str, Any]) -> bool:
        """Whether ``rule`` removes open uploads in this folder or in a part of it."""
        prefix, here = rule.get("Filter", rule).get("Prefix", ""), self.key("")
        return rule["Status"] == "Enabled" and _ENDS_UPLOADS in rule and here[: len(prefix)] == prefix[: len(here)]

    def _shows_objects(self) -> Iterator[CheckResult]:
        """Look at one object in the folder, as a commit looks at its published object. Yields nothing for a folder
        without objects, where S3 answers 404 with or without s3:GetObject."""
        check = f"metadata of an object in {self.url}"
        try:
            for listed in self.call("list_objects_v2", Prefix=self.key(""), MaxKeys=1).get("Contents", ()):
                self._head(listed["Key"])
                yield CheckResult.passed(check)
        except PermissionError as error:
            yield CheckResult.failed(
                check, f"refused: {error}. A commit looks at the object that it has published", _GRANT
            )
        except OSError as error:
            yield _unknown_result(check, error)

    def create(self, transaction_id: str, number: int, target: str) -> S3File:  # noqa: ARG002  # an upload has its own id
        mark = {MARK: transaction_id}
        upload = self.call("create_multipart_upload", Key=self.key(target), Metadata=mark)["UploadId"]
        return S3File(self, FileHandle(transaction_id, upload, target))

    def owns(self, file: FileHandle) -> bool:
        """Whether the handle has a target and a plausible upload id. An upload id does not identify its owner. It is
        used only together with the target's key, which does identify the owner."""
        return bool(file.target) and file.pending.isascii() and file.pending.isprintable()

    def where(self, file: FileHandle) -> str:
        return f"upload {file.pending} to {self.url}/{file.target}"

    def look(self, file: FileHandle) -> Sight:
        parts = self._parts(file)
        pending_bytes = sum(part["Size"] for part in parts) if parts else None
        seen = self.sight(
            file, pending_bytes, tuple({key: part[key] for key in _OF_A_PART if key in part} for part in parts)
        )
        is_whole = seen.target_bytes is None and pending_bytes == file.size_bytes
        if is_whole and file.parts != digest(part["ETag"] for part in parts):
            raise OSError(errno.EIO, f"the upload's {len(parts)} parts are not those that were pre-committed")
        return seen

    def may_hide_s(self, file: FileHandle) -> float:
        return HIDDEN_S + (file.size_bytes or 0) / ASSEMBLED_BYTES_PER_S

    def publish(self, file: FileHandle, seen: Sight) -> None:
        self.call(
            "complete_multipart_upload",
            Key=self.key(file.target),
            UploadId=file.pending,
            MultipartUpload={"Parts": list(seen.parts)},
        )
        # Only the object itself proves that it was published. S3 sends 200 before it begins. If versitygw 1.8.0 is
        # killed during a completion, it answers every repeat with 200, also the client's own, and never publishes the
        # object.
        try:
            self.require_target(file)
        except PermissionError as error:
            raise OSError(
                errno.EIO,
                "S3 accepted the completion, so the file is probably published, but refuses to show it:"
                f" {error.strerror}",
            ) from error

    def settle(self, file: FileHandle) -> None:
        """Do nothing: a completed upload is durable, and leaves nothing behind."""

    def discard(self, file: FileHandle) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call("abort_multipart_upload", Key=self.key(file.target), UploadId=file.pending)

    def pending(self) -> Iterable[FileHandle]:
        prefix = self.key("")
        for upload in self._pages("list_multipart_uploads", "Uploads", ("KeyMarker", "UploadIdMarker"), Prefix=prefix):
            target = upload["Key"].removeprefix(prefix)
            if owner := owner_of_target(target):
                yield FileHandle(owner, upload["UploadId"], target)

    def call(self, method: str, **arguments: object) -> dict[str, Any]:
        """Send a request to S3.

        Raises:
            FileNotFoundError: there is no such upload or object.
            OSError: any other error; its errno is the one that ``outcomes.py`` expects.
        """
        fs, _ = self.located()
        try:
            answer: dict[str, Any] = fs.call_s3(method, Bucket=self.bucket, **arguments)
        except Exception as error:
            raise translate(error) from error
        return answer

    def _parts(self, file: FileHandle) -> list[dict[str, Any]]:
        """Return the parts of an upload. Pre-commit uploads at least one part, so an empty list means that the upload
        is gone, or that the server is assembling the object."""
        key = {"Key": self.key(file.target), "UploadId": file.pending}
        try:
            return list(self._pages("list_parts", "Parts", ("PartNumberMarker",), **key))
        except FileNotFoundError:
            return []

    def found(self, below: str) -> tuple[int, str | None] | None:
        try:
            head = self._head(self.key(below))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise OSError(errno.EACCES, f"{error.strerror}; {_GRANT}") from error
        return head["ContentLength"], head["Metadata"].get(MARK)

    def _head(self, key: str) -> dict[str, Any]:
        return self.call("head_object", Key=key)

    def _pages(self, method: str, entries: str, markers: tuple[str, ...], **arguments: object) -> Iterator[Any]:
        while True:
            page = self.call(method, **arguments)
            yield from page.get(entries, ())
            if not page.get("IsTruncated"):
                return
            arguments |= {marker: page[f"Next{marker}"] for marker in markers}


class S3File(FileOfParts):
    """A pending file as a multipart upload."""

    most_parts = 10_000
    _store: S3

    def __init__(self, store: S3, handle: FileHandle) -> None:
        super().__init__(store, handle)
        self._etags: list[str] = []

    def upload_part(self, number: int, data: bytearray) -> None:
        answer = self._store.call(
            "upload_part",
            Key=self._store.key(self.handle.target),
            UploadId=self.handle.pending,
            PartNumber=number + 1,
            Body=data,
        )
        self._etags.append(answer["ETag"])

    def made_durable(self) -> FileHandle:
        if self._buffer or not self._etags:
            self.upload_rest()
        return replace(super().made_durable(), parts=digest(self._etags))


def _unknown_result(check: str, error: OSError) -> CheckResult:
    return CheckResult.warning(check, f"not known: {error}", "repeat the check")


def digest(etags: Iterable[str]) -> str:
    """Return a digest of a list of parts, whose size does not grow with the file."""
    return hashlib.sha256("\n".join(etags).encode()).hexdigest()
