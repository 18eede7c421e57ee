"""Where a table is: its files through fsspec, its log through delta-rs, both with the same options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import fsspec
import orjson

from twopc.durable_files import LocalFolder, ObjectFolder, make_folder, sync_folder
from twopc.errors import ConfigurationError
from twopc.places import LOCAL, canonical, parsed_place

NOTES = "_twopc"
"""The folder of notes, below the table's own. Readers of Delta look at the log alone; VACUUM skips a folder whose name
starts with an underscore."""

LOG = "_delta_log"
_LAST_CHECKPOINT = "_last_checkpoint"

_S3 = ("s3", "s3a")
_BLOCK_BYTES = 8 * 1024 * 1024
"""How much of a file is in memory before a part of it goes to S3. s3fs would hold 50 MiB per open file."""

_NAMES = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "anon": "aws_skip_signature",
    "endpoint_url": "aws_endpoint_url",
    "client_kwargs": "",  # of it these two:
}
_OF_CLIENT = {"endpoint_url": "aws_endpoint_url", "region_name": "aws_region"}
"""fsspec's names of S3 options → delta-rs's."""

_SECRET = ("key", "secret", "token")
_SHORTEST_SECRET = 4  # a shorter value would blot out words of a message

_LOCK_OF_DYNAMODB = "AWS_S3_LOCKING_PROVIDER"


@dataclass(frozen=True)
class Storage:
    """The folder of one table.

    Attributes:
        url: a plain path for a local disk, else a URL.
        options: what fsspec needs.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any]) -> Storage:
        """Return the folder at ``url``.

        Raises:
            ConfigurationError: the sink can't use such a store, or not with these options.
        """
        protocol, path = parsed_place("the table", url)
        if protocol in LOCAL:
            if options:
                raise ConfigurationError("the option 'storage_options' of the delta sink is for S3; a disk has none.")
            return cls(str(Path(path).absolute()), {})
        if protocol not in _S3:
            raise ConfigurationError(
                f"the delta sink writes to local disks and S3. {protocol!r} was not tested: two commits could both win."
            )
        storage = cls(canonical("s3", path.rstrip("/")), dict(options))
        storage.delta_options()
        return storage

    @property
    def is_local(self) -> bool:
        return not self.url.startswith("s3://")

    @property
    def path(self) -> str:
        """The folder as fsspec's file system names it."""
        return self.url if self.is_local else self.url.removeprefix("s3://")

    @property
    def filesystem(self) -> Any:
        """Fsspec's file system. It keeps no listings: other processes write, too."""
        if self.is_local:
            return fsspec.filesystem("file")
        return fsspec.filesystem("s3", **{**self.options, "use_listings_cache": False})

    def delta_options(self) -> dict[str, str]:
        """Return the options as delta-rs names them.

        Raises:
            ConfigurationError: one has no counterpart, so that tasks and driver would reach different places.
        """
        if self.is_local:
            return {}
        if os.environ.get(_LOCK_OF_DYNAMODB):
            raise ConfigurationError(
                f"{_LOCK_OF_DYNAMODB} is set: the table's other writers take turns by a lock in DynamoDB, which"
                " delta-rs no longer supports. They could overwrite a commit of this sink. Have all writers use S3's"
                " conditional puts, and unset the variable."
            )
        found: dict[str, str] = {}
        client = self.options.get("client_kwargs") or {}
        for given, names, prefix in ((self.options, _NAMES, ""), (client, _OF_CLIENT, "client_kwargs.")):
            for name, value in given.items():
                if name not in names:
                    known = ", ".join([*_NAMES, *(f"client_kwargs.{each}" for each in _OF_CLIENT)])
                    what = f"the option 'storage_options' of the delta sink has no {prefix + str(name)!r}"
                    raise ConfigurationError(f"{what}. It has: {known}.")
                if names[name] and value is not None:
                    found[names[name]] = str(value).lower() if isinstance(value, bool) else str(value)
        if found.get("aws_endpoint_url", "").startswith("http://"):
            found["aws_allow_http"] = "true"
        return found

    def without_secrets(self, text: str) -> str:
        """Return ``text`` without the values of credentials, which a server may repeat in an error."""
        for name in _SECRET:
            value = str(self.options.get(name) or "")
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "***")
        return text

    # Files. ---------------------------------------------------------------------------------------------------

    def notes(self) -> LocalFolder | ObjectFolder:
        """Return the folder of notes."""
        if self.is_local:
            return LocalFolder(Path(self.path) / NOTES)
        return ObjectFolder(self.filesystem, f"{self.path}/{NOTES}")

    @contextlib.contextmanager
    def meaning(self) -> Iterator[None]:
        """Around requests: botocore's errors of the connection become OSErrors, as those of a disk are."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("botocore", "aiobotocore", "aiohttp"):
                raise
            raise OSError(self.without_secrets(str(error))) from None

    def create(self, path: str) -> IO[bytes]:
        """Open a new file below the folder for writing."""
        if self.is_local:
            local = Path(self.path) / path
            make_folder(local.parent)
            return local.open("xb")
        opened: IO[bytes] = self.filesystem.open(f"{self.path}/{path}", "wb", block_size=_BLOCK_BYTES)
        return opened

    def close(self, file: IO[bytes], path: str) -> None:
        """Close a file that ``create`` opened, durably."""
        if self.is_local:
            file.flush()
            os.fsync(file.fileno())
        file.close()
        if self.is_local:
            sync_folder((Path(self.path) / path).parent)

    def size_bytes(self, path: str) -> int | None:
        """Return how long a file is; None where there is none."""
        with self.meaning():
            try:
                if self.is_local:
                    return (Path(self.path) / path).stat().st_size
                return int(self.filesystem.info(f"{self.path}/{path}")["size"])
            except FileNotFoundError:
                return None

    def remove(self, path: str) -> None:
        """Remove a file, or do nothing where there is none."""
        with self.meaning(), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                (Path(self.path) / path).unlink()
            else:
                self.filesystem.rm_file(f"{self.path}/{path}")

    def entry(self, version: int) -> bytes | None:
        """Return an entry of the table's log; None where there is none."""
        return self._in_log(f"{version:020d}.json")

    def last_checkpoint(self) -> int:
        """Return the version of the newest checkpoint, as the writer of it has noted; 0 if none has."""
        try:
            return int(orjson.loads(self._in_log(_LAST_CHECKPOINT) or b"")["version"])
        except (ValueError, KeyError, TypeError):
            return 0

    def _in_log(self, name: str) -> bytes | None:
        with self.meaning():
            try:
                if self.is_local:
                    return (Path(self.path) / LOG / name).read_bytes()
                return bytes(self.filesystem.cat_file(f"{self.path}/{LOG}/{name}"))
            except FileNotFoundError:
                return None

    def sync_log(self, newest: int, mark: str) -> None:
        """Make the entries of the table's log survive a power cut, from ``newest`` down to the one that has ``mark`` in
        it. delta-rs writes them to a disk without a sync."""
        if not self.is_local:
            return
        log = Path(self.path) / LOG
        for version in range(newest, -1, -1):
            try:
                with (log / f"{version:020d}.json").open("rb") as entry:
                    os.fsync(entry.fileno())
                    if mark.encode() in entry.read():
                        break
            except FileNotFoundError:  # older ones were cleaned up, behind a checkpoint
                break
        sync_folder(log)

    def sync_checkpoint(self, version: int) -> None:
        """Make a checkpoint survive a power cut, before entries that it stands for are removed."""
        if not self.is_local:
            return
        log = Path(self.path) / LOG
        for path in [*log.glob(f"{version:020d}.checkpoint*"), *log.glob("_sidecars/*"), log / _LAST_CHECKPOINT]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(log)
