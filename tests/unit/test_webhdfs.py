"""What answers of WebHDFS, and their absence, mean."""

import datetime as dt
import errno
import json
import socket
import threading
import traceback
from typing import Any

import pytest
import requests

from twopc.stores.webhdfs import WebHdfs, _failure


def answer(status: int, body: bytes = b"", **headers: str) -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = status, body
    made.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return made


@pytest.mark.parametrize(
    ("status", "exception", "number"),
    [
        (403, "AccessControlException", errno.EACCES),
        (401, "SecurityException", errno.EACCES),
        (404, "FileNotFoundException", errno.ENOENT),
        (403, "FileAlreadyExistsException", errno.EEXIST),
        (403, "ParentNotDirectoryException", errno.ENOTDIR),
        (403, "NSQuotaExceededException", errno.EDQUOT),
        (403, "SafeModeException", errno.EAGAIN),
        (403, "StandbyException", errno.EAGAIN),
        (403, "IOException", errno.EAGAIN),
        (400, "IllegalArgumentException", errno.EINVAL),
        (500, "IOException", errno.EAGAIN),
        (500, "RemoteException", errno.EAGAIN),
        (500, "QuotaExceededException", errno.EAGAIN),
        (500, "AccessControlException", errno.EACCES),
    ],
)
def test_a_refusal_means_what_its_exception_is(status: int, exception: str, number: int) -> None:
    body = {"RemoteException": {"exception": exception, "javaClassName": f"x.{exception}", "message": "why\n\tat x"}}
    assert _failure(answer(status, json.dumps(body).encode())) == (number, f"{exception}: why")


@pytest.mark.parametrize(
    ("status", "number"),
    [(404, errno.EBUSY), (403, errno.EACCES), (500, errno.EBUSY), (501, errno.ENOSYS), (503, errno.EBUSY)],
)
def test_an_answer_of_another_server_never_means_that_a_file_is_missing(status: int, number: int) -> None:
    failure = _failure(answer(status, b"<html>"))
    assert failure is not None
    assert failure[0] == number


def test_the_time_of_a_file_is_a_moment_whatever_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebHdfs, "info", lambda *_: {"modificationTime": 1_700_000_000_250})
    modified = WebHdfs("127.0.0.1", skip_instance_cache=True).modified("/log/19.compact")
    assert (modified.utcoffset(), modified.timestamp()) == (dt.timedelta(0), 1_700_000_000.25)


def test_an_answer_that_was_cut_off_is_no_success() -> None:
    assert _failure(answer(200, b"whole", Content_Length="5")) is None
    assert _failure(answer(200, b"zipped", Content_Length="3", Content_Encoding="gzip")) is None
    assert _failure(answer(200, b"hal", Content_Length="5")) == (errno.ECONNRESET, "3 bytes of 5")


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nwhole"


def test_an_answer_that_was_cut_off_anywhere_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for length in range(len(ANSWER)):
                with listener.accept()[0] as client:
                    client.recv(65536)
                    client.sendall(ANSWER[:length])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        fs = WebHdfs("127.0.0.1", port=listener.getsockname()[1], skip_instance_cache=True)
        for _ in range(len(ANSWER)):
            with pytest.raises(OSError, match=r"no answer|bytes of") as cut:
                fs._call("RENAME", "put", "/a", destination="/b")
            assert cut.value.errno == errno.ECONNRESET
        thread.join(30)
        assert not thread.is_alive()


def test_a_url_names_its_name_node() -> None:
    fs = WebHdfs("nn", port=9870, skip_instance_cache=True)
    for path in ("/orders/a b", "webhdfs://nn:9870/orders/a b"):
        assert fs.unstrip_protocol(path) == "webhdfs://nn:9870/orders/a b"


def test_a_rename_between_encryption_zones_is_no_reason_to_wait() -> None:
    body = {"RemoteException": {"exception": "IOException", "message": "/a can't be moved into an encryption zone."}}
    assert _failure(answer(403, json.dumps(body).encode())) == (
        errno.EXDEV,
        "IOException: /a can't be moved into an encryption zone.",
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://nn:port/webhdfs/v1/a?delegation=the%2Ftoken&op=OPEN",
        "ftp://nn/webhdfs/v1/a?op=OPEN&delegation=the%2Ftoken",
        "nn/webhdfs/v1/a?delegation=the%2Ftoken",
    ],
)
def test_a_token_in_a_url_that_cannot_be_asked_is_not_shown(url: str) -> None:
    """Such as that of a DataNode, whose token the NameNode has made up."""
    session = WebHdfs("nn", skip_instance_cache=True).session
    with pytest.raises(OSError, match="no answer") as told:
        session.get(url)
    assert "the%2Ftoken" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize("block_bytes", [5, 100])
def test_a_file_is_created_with_its_first_block_and_no_empty_one_is_appended(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = WebHdfs("nn", skip_instance_cache=True)
    sent = list[tuple[str, bytes]]()
    monkeypatch.setattr(fs, "create", lambda path, data, replaces: sent.append(("create", data)))
    monkeypatch.setattr(fs, "append", lambda path, data: sent.append(("append", data)))
    with fs.open("/a", "wb", block_size=block_bytes) as file:
        file.write(b"12345")
        file.write(b"67890")
    assert sent == ([("create", b"12345"), ("append", b"67890")] if block_bytes == 5 else [("create", b"1234567890")])


def test_a_mode_that_would_replace_what_it_is_to_append_to_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="ab"):
        WebHdfs("nn", skip_instance_cache=True).open("/a", "ab")


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = WebHdfs("127.0.0.1", skip_instance_cache=True)

    def ls(path: str, **_: Any) -> list[Any]:
        raise OSError(number, path)

    monkeypatch.setattr(fs, "ls", ls)
    number = errno.ECONNRESET
    with pytest.raises(OSError, match="/orders"):
        fs.find("/orders")
    number = errno.ENOENT
    monkeypatch.setattr(fs, "isfile", lambda _: False)
    assert fs.find("/orders") == []
