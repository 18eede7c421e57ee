"""What answers of WebHDFS, and their absence, mean."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
import requests

from twopc.webhdfs import WebHdfs, _failure


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
        (500, "NullPointerException", errno.EIO),
    ],
)
def test_a_refusal_means_what_its_exception_is(status: int, exception: str, number: int) -> None:
    body = {"RemoteException": {"exception": exception, "javaClassName": f"x.{exception}", "message": "why\n\tat x"}}
    assert _failure(answer(status, json.dumps(body).encode())) == (number, f"{exception}: why")


@pytest.mark.parametrize(("status", "number"), [(404, errno.EIO), (403, errno.EACCES), (503, errno.EAGAIN)])
def test_an_answer_of_another_server_never_means_that_a_file_is_missing(status: int, number: int) -> None:
    failure = _failure(answer(status, b"<html>"))
    assert failure is not None
    assert failure[0] == number


def test_an_answer_that_was_cut_off_is_no_success() -> None:
    assert _failure(answer(200, b"whole", Content_Length="5")) is None
    assert _failure(answer(200, b"zipped", Content_Length="3", Content_Encoding="gzip")) is None
    assert _failure(answer(200, b"hal", Content_Length="5")) == (errno.ECONNRESET, "3 bytes of 5")


def test_a_url_names_its_name_node() -> None:
    fs = WebHdfs("nn", port=9870, skip_instance_cache=True)
    for path in ("/orders/a b", "webhdfs://nn:9870/orders/a b"):
        assert fs.unstrip_protocol(path) == "webhdfs://nn:9870/orders/a b"


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
