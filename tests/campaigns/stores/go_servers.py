"""S3 servers that keep their objects on a disk, and so survive a kill. Each is built at a fixed version from the Go
module proxy into the cache folder."""

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from tests.support.go_program import GoProgram
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess
from twopc_files.stores.store import MARK

START_TIMEOUT_S = 30.0
KEY, SECRET = "provestores", "provestores-secret"

CHECKSUM_BYTES, CHECKED_BYTES = 32, 1024 * 1024
"""The format in which MinIO keeps data on one drive."""

_NAMED = re.compile(r"transaction (\S+) of batch \d+ \(upload (\S+) to s3://([^/]+)/(\S+)\) ")
"""An upload in the error of a commit: its transaction, id, bucket and key."""


@dataclass(frozen=True)
class Program(GoProgram):
    """An S3 server. Of MinIO, the version is a commit, because it has no tags that Go accepts.

    Attributes:
        arguments: returns the arguments for a server, given its port and the folder of its objects.
        environment: additional environment variables, including the keys, so that no process list shows them.
        mend: does what the README tells an operator to do about an upload that the server can't complete any more.
            Takes the folder of the objects, the options to reach the server, and the error. Returns the number of
            repaired uploads.
    """

    arguments: Callable[[int, Path], list[str]]
    environment: Mapping[str, str]
    mend: Callable[[Path, Mapping[str, Any], str], int]


def _versitygw(port: int, folder: Path) -> list[str]:
    return ["--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]


def _give_its_name_back(objects: Path, options: Mapping[str, Any], error: str) -> int:
    """Repair after a kill of versitygw: renamed from ``<id>.<ETag>.inprogress`` to its id, an upload is open again.

    Rename only the uploads that the error names. A kill after the object was published leaves such a folder, too, and
    that upload would be open for ever.
    """
    stuck = [
        folder
        for _, upload, *_ in _NAMED.findall(error)
        for folder in objects.glob(f"*/.sgwtmp/multipart/*/{upload}.*.inprogress")
    ]
    for folder in stuck:
        folder.rename(folder.with_name(folder.name.partition(".")[0]))
    return len(stuck)


def _minio(port: int, folder: Path) -> list[str]:
    return ["server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]


def _put_the_file_back(objects: Path, options: Mapping[str, Any], error: str) -> int:
    """Repair after a kill of MinIO that destroyed an upload's metadata, before or after it had moved the parts below
    the object's key. MinIO keeps the parts; on one drive, each MiB follows a checksum."""
    client = botocore.session.Session().create_client(
        "s3",
        "us-east-1",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
    found = _NAMED.findall(error)
    for transaction, upload, bucket, key in found:
        folder = base64.urlsafe_b64decode(upload + "==").decode().partition(".")[2]
        below = (f".minio.sys/multipart/*/{folder}", f"{bucket}/{key}")
        [part] = [part for place in below for part in objects.glob(f"{place}/*/part.1")]
        client.put_object(Bucket=bucket, Key=key, Body=_data(part.read_bytes()), Metadata={MARK: transaction})
    return len(found)


def _data(part: bytes) -> bytes:
    block = CHECKSUM_BYTES + CHECKED_BYTES
    return b"".join(part[start + CHECKSUM_BYTES : start + block] for start in range(0, len(part), block))


PROGRAMS: Mapping[str, Program] = {
    "versitygw": Program(
        "github.com/versity/versitygw/cmd/versitygw",
        "v1.8.0",
        "1.25",
        _versitygw,
        {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
        _give_its_name_back,
    ),
    "minio": Program(
        "github.com/minio/minio",
        "v0.0.0-20260212201848-7aac2a2c5b7c",
        "1.24",
        _minio,
        {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"},
        _put_the_file_back,
    ),
}
"""Store → its server."""


class GoServer(ServerProcess):
    """A running program, with its objects in a folder."""

    _asked = "/minio/health/ready"  # for other servers, a bucket that may not be read

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._port = free_port()

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which fsspec's ``s3`` reaches the server. A restart does not change them."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint_url}

    def start(self) -> None:
        objects = self._folder / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        self._start(
            self._program.name,
            [str(self._program.path), *self._program.arguments(self._port, objects)],
            self._folder / "server.log",
            START_TIMEOUT_S,
            env={**os.environ, **self._program.environment, "HOME": str(self._folder)},
            cwd=self._folder,
        )

    def mend(self, error: str) -> int:
        """Do what an operator does after ``error``, so that the next start completes the uploads that it names."""
        return self._program.mend(self._folder / "objects", self.storage_options, error)
