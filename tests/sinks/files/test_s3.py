"""Multipart uploads that are held open, on a real S3 server, with a proxy in front that loses and changes replies."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fsspec
import pyarrow as pa
import pytest
from botocore.exceptions import CredentialRetrievalError
from s3fs import S3FileSystem

from tests.sinks.files.conftest import Place
from tests.sinks.files.uploads import ID, MIB, TARGET, Secrets, UploadContract, run_one_batch, the_file, upload
from tests.support.http_proxy import Answer, HttpProxy, Lost, s3_error
from tests.support.raising import raising
from tests.support.s3_server import S3Server, without_credentials
from twopc import Committable, Participant, Round
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc_files.file_names import FileHandle, decidable_files
from twopc_files.sink import FileSink
from twopc_files.stores.s3 import S3
from twopc_files.stores.store import Sight


@pytest.fixture(scope="module")
def one_proxy(s3_server: S3Server) -> Iterator[HttpProxy]:
    """One for all tests: a client for another address takes botocore most of a second to make."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxied(s3: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The folder as it is reached through the proxy, by a client that repeats nothing by itself."""
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    once = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
    return Place(s3.url, {**s3.storage_options, **once, "endpoint_url": proxy.url})


@pytest.fixture
def repeating(s3: Place, proxy: HttpProxy) -> Place:
    return Place(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})


@pytest.fixture
def gone(proxied: Place, tmp_path: Path) -> Place:
    nobody = S3Server(tmp_path / "log").endpoint_url
    return Place(proxied.url, {**proxied.storage_options, "endpoint_url": nobody})


@pytest.fixture
def absent(s3: Place) -> Place:
    return Place("s3://no-such-bucket/orders", s3.storage_options)


@pytest.fixture
def secrets(s3: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    credentials = {"key": "AKIAVERYSECRETKEY", "secret": "very/secret+secret", "token": "verysecrettoken"}
    return [Place(s3.url, {"endpoint_url": proxy.url, **credentials})], [*credentials.values()]


COMPLETED = Answer(
    200,
    b'<?xml version="1.0" encoding="UTF-8"?>\n<CompleteMultipartUploadResult><ETag>&quot;0-1&quot;</ETag>'
    b"</CompleteMultipartUploadResult>",
)
"""As S3 says that an upload is completed."""


class TestUploadsOfS3(UploadContract):
    publication = ("POST", "uploadId")
    part = ("PUT", "partNumber")
    creation = ("POST", "uploads")
    busy = s3_error(503, "SlowDown")
    accepted = COMPLETED
    denied = s3_error(403, "AccessDenied", "not for you")
    unauthenticated = s3_error(403, "SignatureDoesNotMatch", "who are you")
    parts_of_nothing = (0,)
    absent_is = "NoSuchBucket"
    replies = (
        (Lost.REQUEST, Retriable),
        (Lost.REPLY, Retriable),
        (busy, Retriable),
        (s3_error(500, "InternalError"), Retriable),
        (Answer(502, b"bad gateway"), Retriable),
        (s3_error(409, "OperationAborted"), Retriable),
        (s3_error(200, "InternalError"), Retriable),
        (Answer(200, b'<?xml version="1.0" encoding="UTF-8"?>\n  <CompleteMultipartUploadResult/>'), Retriable),
        (s3_error(404, "NoSuchUpload"), Retriable),
        (denied, OperatorRequired),
        (s3_error(400, "ExpiredToken"), OperatorRequired),
        (s3_error(501, "NotImplemented"), OperatorRequired),
        (s3_error(404, "NoSuchBucket"), OutcomeUnknown),
        (s3_error(400, "InvalidPart"), OutcomeUnknown),
    )
    questions = (
        (Lost.REPLY, Retriable),
        (busy, Retriable),
        (denied, OperatorRequired),
        *((Answer(404, of_a_gateway), Retriable) for of_a_gateway in (b"", b"default backend - 404")),
    )

    def put(self, place: Place, target: str, contents: bytes, owner: str) -> None:
        mark = {"twopc-transaction": owner}
        s3_of(place).call("put_object", Key=f"data/orders/{target}", Body=contents, Metadata=mark)


def s3_of(place: Place) -> S3:
    store = place.store
    assert isinstance(store, S3)
    return store


def test_a_file_that_is_forgotten_is_not_made_durable(s3: Place) -> None:
    file = s3_of(s3).create(ID, 0, TARGET)
    file.write(b"x")
    handle = file.handle
    del file
    gc.collect()
    assert s3_of(s3)._parts(handle) == []


def test_a_committable_does_not_grow_with_the_file(s3: Place) -> None:
    small, large = (len(upload(s3, bytes(size)).parts) for size in (10, 20 * MIB))
    assert small == large


def test_checksums_that_s3_keeps_of_parts_are_given_back_when_the_upload_is_completed(
    proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    file = the_file(committable)
    etag = proxied.store.look(file).parts[0]["ETag"]
    part = f"<PartNumber>1</PartNumber><ETag>{etag}</ETag><Size>{file.size_bytes}</Size>"
    checksum = "<ChecksumSHA256>the checksum</ChecksumSHA256>"  # which moto does not tell
    proxy.disturb_next(
        "GET", Answer(200, f"<ListPartsResult><Part>{part}{checksum}</Part></ListPartsResult>".encode()), "uploadId"
    )
    proxied.sink().commit(committable)
    [completion] = proxy.sent("POST", "uploadId")
    assert checksum.encode() in completion.body


def test_parts_are_read_page_by_page(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc_files.stores.store.PART_BYTES", 10)
    call = S3.call

    def in_small_pages(store: S3, method: str, **arguments: Any) -> dict[str, Any]:
        return call(store, method, **arguments, **({"MaxParts": 2} if method == "list_parts" else {}))

    monkeypatch.setattr(S3, "call", in_small_pages)
    handle = upload(s3, bytes(65))
    assert len(s3_of(s3).look(handle).parts) == 7


def test_parts_that_were_replaced_are_vetoed_and_after_a_decision_in_doubt(s3: Place) -> None:
    committable = s3.pre_commit()
    file = the_file(committable)
    other = b"x" * (file.size_bytes or 0)
    key = {"Key": f"data/orders/{file.target}", "UploadId": file.pending}
    s3_of(s3).call("upload_part", PartNumber=1, Body=other, **key)
    with pytest.raises(Refused, match="not those that were pre-committed"):
        s3.sink().seal([committable], age_s=0)
    with pytest.raises(OutcomeUnknown, match="not those that were pre-committed"):
        s3.sink().commit(committable)
    assert s3.targets() == []


def test_an_upload_that_is_gone_after_a_completion_that_published_nothing_is_lost(
    s3: Place, proxied: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with versitygw 1.8.0 that is killed amid a completion, which the client repeats."""
    committable = proxied.pre_commit()
    look = S3.look

    def look_before_the_upload_is_gone(store: S3, file: FileHandle) -> Sight:
        seen = look(store, file)
        s3.store.discard(file)
        return seen

    proxy.disturb_next("POST", COMPLETED, "uploadId")
    with monkeypatch.context() as patched:
        patched.setattr(S3, "look", look_before_the_upload_is_gone)
        with pytest.raises(Retriable, match="has not appeared"):
            proxied.sink().commit(committable)
    with pytest.raises(TransactionLost, match="2 records"):
        proxied.sink().commit(committable)


def test_a_commit_takes_four_requests_of_a_file_the_last_of_which_looks_at_the_object(
    proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    proxy.requests.clear()
    proxied.sink().commit(committable)
    assert [request.method for request in proxy.requests] == ["GET", "HEAD", "POST", "HEAD"]


A_PART = b"<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>0</ETag><Size>1</Size></Part></ListPartsResult>"
HIDING = [s3_error(404, "NoSuchUpload"), Answer(200, b"<ListPartsResult/>"), Answer(200, A_PART)]
"""How servers list the parts of an upload that they are at putting together: versitygw first, then MinIO."""


@pytest.mark.variants
@pytest.mark.parametrize("parts", HIDING, ids=["no upload", "no parts", "a part of them"])
def test_a_file_that_its_server_hides_while_it_publishes_is_asked_for_again_before_it_counts_as_lost(
    parts: Answer, proxied: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_files.stores.s3.HIDDEN_S", 60.0)
    sink, committable = proxied.sink(), proxied.pre_commit()
    proxy.disturb_all("GET", parts, "uploadId")
    for _ in range(2):
        with pytest.raises(Retriable, match="asked again"):
            sink.commit(committable)
    proxy.heal()
    sink.commit(committable)
    assert proxied.values() == ["a", "b"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    list(zip(HIDING, (TransactionLost, TransactionLost, OutcomeUnknown), strict=True)),
    ids=["no upload", "no parts", "a part of them"],
)
def test_what_a_killed_server_left_of_an_upload_stops_the_query(
    parts: Answer, expected: type[TwoPhaseCommitError], proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_all("GET", parts, "uploadId")
    with pytest.raises(expected) as error:
        proxied.sink().commit(committable)
    assert type(error.value) is expected
    assert proxy.sent("POST", "uploadId") == []


@dataclass
class Clock:
    """``time`` for the sink: a test has it go on."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("twopc_files.sink.time", clock)
    return clock


def is_asked_again(sink: FileSink, committable: Committable) -> None:
    with pytest.raises(Retriable, match="asked again"):
        sink.commit(committable)


class Hide(Protocol):
    def __call__(self, hidden_s: float, written_by: Place | None = None) -> tuple[FileSink, Committable]: ...


@pytest.fixture
def hide(s3: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Hide:  # the sink reads the clock
    """A sink and its decided transaction, whose file the store hides and was asked for once."""

    def hidden(hidden_s: float, written_by: Place | None = None) -> tuple[FileSink, Committable]:
        monkeypatch.setattr("twopc_files.stores.s3.HIDDEN_S", hidden_s)
        place = written_by or s3
        sink, committable = place.sink(), place.pre_commit()
        s3.store.discard(the_file(committable))
        is_asked_again(sink, committable)
        return sink, committable

    return hidden


@pytest.mark.parametrize(("hidden_s", "passed_s"), [(0.5, 0.5), (10.0, 60.0)])
def test_a_file_that_stays_hidden_is_lost_when_its_time_has_passed_however_long_the_files_between_take(
    hidden_s: float, passed_s: float, hide: Hide, clock: Clock
) -> None:
    sink, committable = hide(hidden_s)
    clock.now_s += passed_s
    with pytest.raises(TransactionLost, match="2 records"):
        sink.commit(committable)


def test_a_file_that_is_seen_again_may_be_hidden_once_more(
    proxied: Place, proxy: HttpProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_files.stores.s3.HIDDEN_S", 0.5)
    sink, committable = proxied.sink(), proxied.pre_commit()
    for _ in range(2):
        proxy.disturb_next("GET", s3_error(404, "NoSuchUpload"), "uploadId")
        proxy.disturb_next("POST", s3_error(503, "SlowDown"), "uploadId")
        for reason in ("asked again", "SlowDown"):
            with pytest.raises(Retriable, match=reason):
                sink.commit(committable)
        clock.now_s += 0.5


def test_time_in_which_a_store_gives_no_answer_does_not_count_as_time_in_which_it_hides_a_file(
    proxied: Place, proxy: HttpProxy, hide: Hide, clock: Clock
) -> None:
    sink, committable = hide(1.5, proxied)
    clock.now_s += 1
    is_asked_again(sink, committable)
    proxy.disturb_next("HEAD", s3_error(503, "SlowDown"))
    with pytest.raises(Retriable, match="can't be committed yet"):
        sink.commit(committable)
    for _ in range(2):
        clock.now_s += 1
        is_asked_again(sink, committable)
    clock.now_s += 1
    with pytest.raises(TransactionLost, match="2 records"):
        sink.commit(committable)


def test_time_in_which_the_client_repeats_a_look_does_not_count_as_time_in_which_a_file_is_hidden(
    hide: Hide, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, committable = hide(10.0)
    look = S3.look

    def look_for_long(store: S3, file: FileHandle) -> Sight:
        clock.now_s += 20
        return look(store, file)

    with monkeypatch.context() as patched:
        patched.setattr(S3, "look", look_for_long)
        is_asked_again(sink, committable)
    clock.now_s += 1
    is_asked_again(sink, committable)


def test_a_sink_that_is_opened_again_waits_for_a_hidden_file_anew(hide: Hide, clock: Clock) -> None:
    sink, committable = hide(1.0)
    clock.now_s += 1
    sink.open()
    is_asked_again(sink, committable)


def test_a_large_file_may_be_hidden_for_longer(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc_files.stores.s3.HIDDEN_S", 10.0)
    monkeypatch.setattr("twopc_files.stores.s3.ASSEMBLED_BYTES_PER_S", 16 * MIB)
    handles = [FileHandle(ID, "upload", TARGET, size_bytes) for size_bytes in (0, 1600 * MIB)]
    assert [s3_of(s3).may_hide_s(handle) for handle in handles] == [10.0, 110.0]


def test_an_object_in_place_counts_though_its_upload_is_still_listed(proxied: Place, proxy: HttpProxy) -> None:
    """MinIO removes what is left of an upload after its object is there."""
    committable = proxied.pre_commit()
    proxied.sink().commit(committable)
    size_bytes = b"%d" % (the_file(committable).size_bytes or 0)
    for parts in (A_PART, A_PART.replace(b"<Size>1<", b"<Size>%s<" % size_bytes)):
        proxy.disturb_next("GET", Answer(200, parts), "uploadId")
        proxied.sink().commit(committable)
    assert proxy.is_done


def test_an_endpoint_for_credentials_that_fails_is_asked_again(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = s3.pre_commit()
    fail = raising(CredentialRetrievalError(provider="iam-role", error_msg="timeout"))
    with monkeypatch.context() as patch:
        patch.setattr("aiobotocore.client.AioBaseClient._make_api_call", fail)
        with pytest.raises(Retriable, match="iam-role"):
            s3.sink().commit(committable)
    s3.sink().commit(committable)
    assert s3.values() == ["a", "b"]


def test_what_may_pass_is_repeated_before_a_person_is_called_for_what_will_not(
    proxied: Place, proxy: HttpProxy
) -> None:
    sink = proxied.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    with transaction.create("a=1") as second:
        second.write(b'{"value": "b"}\n')
    committable = sink.pre_commit(transaction)
    lost, delayed = decidable_files(committable)
    sink._store.discard(lost)
    proxy.disturb_next("POST", s3_error(503, "SlowDown"), f"uploadId={delayed.pending}")
    for expected in (Retriable, TransactionLost):
        with pytest.raises(expected):
            proxied.sink().commit(committable)
    assert proxied.values() == ["b"]


def test_a_completed_object_that_may_not_be_looked_at_is_not_said_to_be_uncommitted(
    proxied: Place, proxy: HttpProxy
) -> None:
    """Without s3:GetObject, S3 answers 404 for an absent object, and 403 as soon as the object is there."""
    committable = proxied.pre_commit(batch_id=7)
    proxy.disturb_next("HEAD", s3_error(404, "NoSuchKey"))
    proxy.disturb_all("HEAD", s3_error(403, "AccessDenied"))
    with pytest.raises(OutcomeUnknown, match=r"batch 7.*accepted the completion.*published.*grant s3:GetObject"):
        proxied.sink().commit(committable)
    with pytest.raises(OperatorRequired, match=r"batch 7.*may not see whether it is committed.*s3:GetObject") as error:
        proxied.sink().commit(committable)
    assert "not committed" not in str(error.value)
    proxy.heal()
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]


@pytest.mark.variants
@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (400, "ExpiredToken")],
)
def test_credentials_that_s3_refuses_are_refused_before_anything_is_written(
    status: int, code: str, proxied: Place, proxy: HttpProxy, tmp_path: Path
) -> None:
    proxy.disturb_all("GET", s3_error(status, code))
    with pytest.raises(ConfigurationError, match=rf"{code}.*'storage_options'"):
        run_one_batch(proxied, tmp_path / "log")
    assert proxy.sent("PUT") == proxy.sent("POST") == []


def test_no_credentials_at_all_are_refused_before_anything_is_written(
    s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_credentials(monkeypatch, tmp_path)
    place = Place(s3.url, {"endpoint_url": s3.storage_options["endpoint_url"]})
    with pytest.raises(ConfigurationError, match=r"redentials.*'storage_options'"):
        run_one_batch(place, tmp_path / "log")


def test_a_name_that_is_too_long_for_s3_is_refused(proxied: Place, proxy: HttpProxy) -> None:
    proxy.disturb_next("POST", s3_error(400, "KeyTooLongError"), "uploads")
    with pytest.raises(ConfigurationError, match="KeyTooLongError"):
        proxied.pre_commit()


def open_uploads(place: Place) -> dict[str, str]:
    bucket = place.url.removeprefix("s3://").split("/", maxsplit=1)[0]
    answer = fsspec.filesystem("s3", **place.storage_options).call_s3("list_multipart_uploads", Bucket=bucket)
    return {upload["UploadId"]: upload["Key"] for upload in answer.get("Uploads", ())}


def test_a_sweep_aborts_its_own_uploads_and_never_another_one(s3: Place) -> None:
    own = s3.pre_commit()
    s3.pre_commit(log_id="log2")
    store = s3_of(s3)
    for key in (
        *(f"data/orders/{TARGET}.bak", f"data/orders/x{TARGET}", f"data/orders/sub/{TARGET}"),
        *(f"data/orders/{TARGET.replace('orders', 'orders2')}", f"data/orders/{TARGET.replace('.0.json', '.json')}"),
        *(f"data/orders2/{TARGET}", f"data/{TARGET}", "data/orders/part-0.parquet", "data/orders"),
    ):
        store.call("create_multipart_upload", Key=key)
    others = {name: key for name, key in open_uploads(s3).items() if name != the_file(own).pending}
    sink = s3.sink()
    [found] = sink.recover()
    assert found.is_same_transaction(own)
    sink.abort(found)
    assert open_uploads(s3) == others


def test_open_uploads_are_listed_page_by_page(proxied: Place, proxy: HttpProxy) -> None:
    own = the_file(proxied.pre_commit(partition=3))
    first = f"data/orders/{TARGET}"
    page = (
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>the key</NextKeyMarker>"
        f"<NextUploadIdMarker>the id</NextUploadIdMarker><Upload><Key>{first}</Key><UploadId>first</UploadId></Upload>"
        "</ListMultipartUploadsResult>"
    )
    proxy.disturb_next("GET", Answer(200, page.encode()), "uploads")
    found = [committable.handle["open"] for committable in proxied.sink().recover()]
    assert found == [[{"staged": "first", "target": TARGET}], [{"staged": own.pending, "target": own.target}]]
    assert "key-marker=the%20key" in proxy.sent("GET", "uploads")[-1].target
    assert "upload-id-marker=the%20id" in proxy.sent("GET", "uploads")[-1].target


def test_a_task_that_goes_on_after_its_upload_was_swept_can_not_vote_yes(s3: Place, proxied: Place) -> None:
    sink = proxied.sink()
    zombie = Participant({"orders": sink}, Round(1, 0), partition=0)
    zombie.write("orders", pa.record_batch({"value": ["a"]}))
    for found in s3.sink().recover():
        s3.sink().abort(found)
    with pytest.raises(OSError, match="could not be written"):
        zombie.pre_commit()
    assert (open_uploads(s3), s3.targets()) == ({}, [])
