"""HDFS over WebHDFS through fsspec's client, with answers that are reliable enough for a commit.

fsspec's own client ignores a refused rename, returns a DataNode's error as the contents of a file, waits without limit,
and shows the delegation token in its errors, because every URL contains it.

Here every refusal is an OSError whose errno follows from the name of the Java exception. If there is no answer, the
errno is ETIMEDOUT or ECONNRESET, and the outcome of a change is unknown. No error contains a credential.
"""

from __future__ import annotations

import datetime as dt
import errno
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFile, WebHDFS
from requests.adapters import HTTPAdapter

from twopc.stores.errors import is_untrusted, of_status
from twopc.stores.fsspec_internals import behind_proxy, path_of

TIMEOUTS_S = (10.0, 60.0)
"""How long a client waits for a connection, and for the next bytes of an answer."""

_CONNECTIONS = 32
"""The idle connections to keep per host. A sink sends up to 16 requests at a time, and urllib3 warns of a surplus."""

BLOCK_BYTES = 64 * 1024 * 1024
"""How many bytes of a file are held in memory and written in one request. A folder with erasure coding refuses a second
block, which would be an ``APPEND``."""

_BY_EXCEPTION = {
    "AccessControlException": errno.EACCES,
    "AuthenticationException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "InvalidToken": errno.EACCES,
    "SecurityException": errno.EACCES,
    "FileAlreadyExistsException": errno.EEXIST,
    "FileNotFoundException": errno.ENOENT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "MaxDirectoryItemsExceededException": errno.ENOSPC,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "UnsupportedOperationException": errno.ENOSYS,
}

# The statuses of both ExceptionHandler.java of Hadoop. 403 is any other IOException, for example from a NameNode that
# is in safe mode, in standby or without a DataNode. HDFS has done nothing, and a retry may succeed. HttpFS sends 500.
_BY_STATUS = {400: errno.EINVAL, 401: errno.EACCES, 403: errno.EAGAIN, 404: errno.ENOENT, 500: errno.EAGAIN}

_BETWEEN_ZONES = "encryption zone"
"""In the IOException for a rename into or out of an encryption zone (EncryptionZoneManager.checkMoveValidity)."""

_TOKEN = re.compile(r"\b(delegation|token)=[^&\s'\")]*", re.IGNORECASE)
"""A token in a URL. A NameNode also puts its own token into the URL of a DataNode."""


class WebHdfs(WebHDFS):  # type: ignore[misc]  # fsspec has no types
    """fsspec's ``webhdfs``, with its options. Every method may raise an OSError."""

    session: requests.Session

    def _connect(self) -> None:
        super()._connect()
        hidden = [secret for secret in (self.pars.get("delegation"), self.password) if secret]
        session = _Session(hidden)
        session.auth, session.cert, session.verify = self.session.auth, self.session.cert, self.session.verify
        self.session = session

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path, with the NameNode's host and port, which fsspec omits."""
        return f"webhdfs://{urlsplit(self.url).netloc}{path_of(self, name)}"

    def create(self, path: str, data: bytes, replaces: bool = False) -> None:
        """Create a file and its missing parents, and close it. After an error, a part of the file may exist. Raises
        FileExistsError if the name exists, unless ``replaces``.

        The DataNodes sync the file before they answer, whatever ``dfs.datanode.synconclose`` is (Hadoop 2.8 and later;
        older ones and HttpFS ignore the flag).
        """
        self._send("CREATE", "put", path, data, overwrite=str(replaces).lower(), createflag="create,sync_block")

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, and close it. After an error, a part of the data may be in the file."""
        self._send("APPEND", "post", path, data)

    def _send(self, operation: str, method: str, path: str, data: bytes, **parameters: str) -> None:
        """Send data to the DataNode that the NameNode names."""
        named = self._call(operation, method, path, redirect=False, **parameters)
        url = behind_proxy(self, named.headers["Location"])
        self.session.request(method.upper(), url, data=data, headers={"Content-Type": "application/octet-stream"})

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **keywords: Any) -> _File:
        if mode not in ("rb", "wb"):
            raise NotImplementedError(f"mode {mode!r}")
        options = {"autocommit": True, **keywords, "tempdir": self.tempdir}
        size_bytes = block_size or (BLOCK_BYTES if mode == "wb" else self.blocksize)
        return _File(self, path, mode=mode, block_size=size_bytes, **options)

    def mv(self, path1: str, path2: str, replaces: bool = False, **_: Any) -> None:
        """Rename a file in one step. ``replaces``: whether to replace a file that has the new name.

        ``renameoptions`` selects the newer of the NameNode's two renames, which never moves a file into a folder of
        that name, and reports each refusal as an exception (FSDirRenameOp.java). HttpFS ignores the option. It returns
        whether it has renamed the file, and never replaces another file.

        Raises FileExistsError if the new name exists, and FileNotFoundError if the file or the new name's folder does
        not.
        """
        options = "OVERWRITE" if replaces else "NONE"
        answer = self._call("RENAME", "put", path1, destination=path2, renameoptions=options)
        if answer.content and not answer.json()["boolean"]:
            for path in (path1, path2):
                self.info(path)
            raise FileExistsError(errno.EEXIST, "exists", path2)

    def set_modified(self, path: str) -> None:
        """Set the modification time of a folder or file to now. The NameNode always journals this edit."""
        self._call("SETTIMES", "put", path, modificationtime=str(time.time_ns() // 1_000_000))

    def modified(self, path: str) -> dt.datetime:
        """Return when a file was modified. Older fsspec releases, such as 2025.12, raise NotImplementedError."""
        return dt.datetime.fromtimestamp(self.info(path)["modificationTime"] / 1000, dt.timezone.utc)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self.rm(path, recursive=False)

    def walk(self, path: str, maxdepth: int | None = None, topdown: bool = True, **keywords: Any) -> Iterator[Any]:
        """Walk like fsspec, but skip only folders that are gone, not all folders that can't be listed."""
        keywords = {"on_error": _raise_unless_gone, **keywords}
        yield from super().walk(path, maxdepth, topdown, **keywords)


class _File(WebHDFile):  # type: ignore[misc]  # fsspec has no types
    """A file that is created with its first block. fsspec would create an empty file and append every block."""

    def _initiate_upload(self) -> None:
        """Do nothing."""

    def _upload_chunk(self, final: bool = False) -> bool:  # noqa: ARG002  # every block is closed
        data = self.buffer.getvalue()
        if self.offset == 0:
            self.fs.create(self.path, data, replaces=True)
        elif data:
            self.fs.append(self.path, data)
        return True


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class _Session(requests.Session):
    """Raises an error for every answer that is not a success. Errors do not contain the texts in ``hidden``."""

    def __init__(self, hidden: list[str]) -> None:
        super().__init__()
        self._hidden = hidden
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))

    def request(self, method: str, url: str, *arguments: Any, **keywords: Any) -> requests.Response:  # type: ignore[override]
        host = urlsplit(url).netloc.rpartition("@")[2]
        try:
            answer = super().request(method, url, *arguments, **{"timeout": TIMEOUTS_S, **keywords})
        except requests.RequestException as error:
            number, text = _without_an_answer(error)
        else:
            failure = _failure(answer)
            if failure is None:
                return answer
            number, text = failure
        for secret in self._hidden:
            text = text.replace(secret, "***")
        text = _TOKEN.sub(r"\1=***", text)
        raise OSError(number, f"{text} ({host})") from None


def _without_an_answer(error: requests.RequestException) -> tuple[int, str]:
    """Return the errno and the text for a request without an answer. The text comes from the root cause, because the
    errors above it contain the URL."""
    root: BaseException = error
    while deeper := root.__cause__ or root.__context__:
        root = deeper
    if is_untrusted(root):
        number = errno.EACCES
    elif isinstance(error, requests.Timeout):
        number = errno.ETIMEDOUT
    elif isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        number = errno.ECONNRESET
    else:
        number = errno.EINVAL
    return number, f"no answer: {type(root).__name__}: {root}"


def _failure(answer: requests.Response) -> tuple[int, str] | None:
    """Return the errno and the text of an error answer, or None for a success."""
    if answer.status_code < 400:
        # If the headers were cut off, Python treats them as complete, and the answer as empty.
        length = answer.headers.get("Content-Length", "a length that it does not have")
        is_whole = "Transfer-Encoding" in answer.headers or length == str(len(answer.content))
        is_whole |= "Content-Encoding" in answer.headers and "Content-Length" in answer.headers
        return None if is_whole else (errno.ECONNRESET, f"{len(answer.content)} bytes of {length}")
    try:
        remote = answer.json()["RemoteException"]
        name, text = str(remote["exception"]), str(remote["message"]).partition("\n")[0]
    except (ValueError, LookupError, TypeError):
        # From a proxy, or a server other than WebHDFS. A 404 means that no server is behind the proxy at the moment.
        number = errno.EBUSY if answer.status_code == 404 else of_status(answer.status_code)
        return number, f"HTTP status {answer.status_code}, not an answer of WebHDFS"
    number = _BY_EXCEPTION.get(name) or _BY_STATUS.get(answer.status_code, errno.EIO)
    if name == "IOException" and _BETWEEN_ZONES in text:
        number = errno.EXDEV
    return number, f"{name}: {text}"
