"""Replay copies: what participants wrote, kept until its batch is known to be complete.

If a target system rolls back a decided transaction, as Kafka does after a timeout, its records are written again from
the copy, in a new transaction that the amended decision names. A copy is an Arrow IPC stream, named by the exact
transactional id of the attempt that wrote it, and followed by the stream's SHA-256. Arrow streams have no checksum, and
a stream that was cut off between two record batches looks complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twopc.errors import ConfigurationError
from twopc.stores.disk import make_folder, sync_folder
from twopc.stores.places import canonical, file_system, parsed_place
from twopc.stores.remote import FRAMED, names_in
from twopc.transaction import Committable
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa


_SUFFIX = ".arrow"

_DIGEST_BYTES = hashlib.sha256().digest_size
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the end of a copy from a release without digests
_READ_AT_ONCE_BYTES = 4 * 1024 * 1024


class DamagedCopy(Exception):
    """The contents of a copy differ from what was written to it."""


@dataclass(frozen=True, slots=True)
class ReplayCopies:
    """A folder of replay copies at any URL that fsspec opens. A value that is pickled with its sink for the
    participants.

    Attributes:
        url: the folder.
        storage_options: options of fsspec's client, such as ``endpoint_url``. Other options come from fsspec's
            configuration where the participants run. Put credentials there.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        protocol, path = parsed_place("the folder of replay copies", self.url)
        # Absolute, because a participant may have another working folder.
        place = canonical(protocol, path) if protocol is not None else str(Path(path).absolute())
        object.__setattr__(self, "url", place)

    def create(self, transaction_id: TransactionId, schema: pa.Schema) -> ReplayCopy:
        """Begin the copy of one transaction's records."""
        return ReplayCopy(self, f"{transaction_id.exact}{_SUFFIX}", schema)

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """Check a copy's digest, then yield its records. Callers must count the records, because a copy from an older
        release has no digest.

        Raises:
            FileNotFoundError: there is no such copy.
            DamagedCopy: the contents of the copy differ from what was written.
        """
        import pyarrow as pa

        arrows = (pa.ArrowInvalid, pa.ArrowSerializationError, pa.ArrowNotImplementedError, pa.ArrowTypeError)
        damage = (*arrows, pa.ArrowKeyError, UnicodeDecodeError, EOFError)
        self._require_whole(name)
        fs, path = self._locate(name)
        with fs.open(path, "rb") as file:
            try:
                with pa.ipc.open_stream(file) as stream:
                    yield from stream
            except (*damage, OSError) as error:
                if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
                    raise  # an error of the store, not of Arrow
                raise DamagedCopy(str(error)) from error

    def _require_whole(self, name: str, digest: bytes | None = None) -> None:
        """Read a copy, and compare its contents with the digest at its end, and with ``digest`` if given. Raises
        FileNotFoundError if there is no such copy, and DamagedCopy if they differ."""
        fs, path = self._locate(name)
        found, kept = hashlib.sha256(), b""
        with fs.open(path, "rb") as file:
            while read := file.read(_READ_AT_ONCE_BYTES):
                kept += read
                found.update(kept[:-_DIGEST_BYTES])
                kept = kept[-_DIGEST_BYTES:]
        if digest is None and kept.endswith(_END_OF_STREAM):
            return
        if found.digest() != kept or digest not in (None, kept):
            raise DamagedCopy("its contents are not those that were written")

    def can_replace(self, lost: Committable) -> bool:
        """Read the copy of ``lost``, and return whether the copy contains all records of that transaction."""
        if lost.replay_copy is None:
            return False
        try:
            return bool(lost.records == sum(batch.num_rows for batch in self.read(lost.replay_copy)))
        except (FileNotFoundError, DamagedCopy):
            return False

    def names(self) -> list[tuple[str, str]]:
        """Return the name and the exact transactional id of every copy in the folder."""
        fs, folder = self._open()
        names = [name for name in names_in(fs, folder) if name.endswith(_SUFFIX)]
        return sorted((name, name.removesuffix(_SUFFIX)) for name in names)

    def remove(self, name: str) -> None:
        """Remove a copy, or do nothing if it is gone."""
        fs, path = self._locate(name)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    def _locate(self, name: str) -> tuple[Any, str]:
        fs, folder = self._open()
        return fs, f"{folder.rstrip('/')}/{name}"

    def _open(self) -> tuple[Any, str]:
        """Return the folder and a file system without cached listings, because the sweep must see other processes'
        copies."""
        return file_system(self.url, **{**self.storage_options, "use_listings_cache": False})


class ReplayCopy:
    """A replay copy that its participant is writing."""

    def __init__(self, replay_copies: ReplayCopies, name: str, schema: pa.Schema) -> None:
        import pyarrow as pa
        from fsspec.implementations.local import LocalFileSystem

        self.name = name
        self._replay_copies = replay_copies
        fs, self._path = replay_copies._locate(name)  # noqa: SLF001  # the other half of one module
        self._is_local = isinstance(fs, LocalFileSystem)
        if self._is_local:
            make_folder(Path(self._path).parent)
        self._file = fs.open(self._path, "wb")
        self._digest = hashlib.sha256()
        self._stream = pa.ipc.new_stream(_Digested(self._file, self._digest), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record batch that was written to the sink."""
        self._stream.write_batch(batch)

    def finish(self) -> str:
        """Make the copy durable, read it back from the store, and return its name, for the committable. On a disk, the
        sync suffices, so the copy is not read back: the kernel would only return its cached pages. Raises
        ConfigurationError if the store returns other contents."""
        self._stream.close()
        self._file.write(self._digest.digest())
        self._file.flush()
        if self._is_local:
            os.fsync(self._file.fileno())
        self._file.close()
        if self._is_local:
            sync_folder(Path(self._path).parent)
            return self.name
        try:
            self._replay_copies._require_whole(self.name, self._digest.digest())  # noqa: SLF001  # as above
        except DamagedCopy as error:
            url = self._replay_copies.url
            advice = FRAMED if url.startswith("s3") else ""
            raise ConfigurationError(
                f"the replay copy {self.name} can't be kept at {url}: {error}, so it could not replace its transaction."
                f" Nothing of the batch is visible. Keep the copies in another store. {advice}"
            ) from error
        return self.name

    def discard(self) -> None:
        """Remove the unfinished copy. If the store refuses, the coordinator's sweep removes it later."""
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._replay_copies.remove(self.name)


class _Digested(io.RawIOBase):
    """Writes to a file, and updates a digest."""

    def __init__(self, file: Any, digest: Any) -> None:
        self._file, self._digest = file, digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._file.write(data)
        return len(data)
