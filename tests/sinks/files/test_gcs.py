"""Objects that are rewritten, on an emulator of Google Cloud Storage, with a proxy that loses and changes replies."""

import gc
import os
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.sinks.files.conftest import Place, voted
from tests.sinks.files.uploads import ID, MIB, TARGET, PublicationContract, RemovalContract, the_file, upload
from tests.support.gcs_repeats import repeat_at_once
from tests.support.gcs_server import BUILD_AT_MOST_S, GcsServer
from tests.support.http_proxy import Answer, HttpProxy, Lost, gcs_error
from twopc.checks import CheckStatus
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc_files.file_names import FileHandle
from twopc_files.outcomes import obstacle_seen
from twopc_files.stores.gcs import Gcs
from twopc_files.stores.store import MARK, Sight

pytestmark = pytest.mark.timeout(BUILD_AT_MOST_S)

FORBIDDEN = gcs_error(403, "writer@project does not have storage.objects access")


@pytest.fixture(scope="module")
def one_proxy(gcs_server: GcsServer) -> Iterator[HttpProxy]:
    with HttpProxy(gcs_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxied(gcs: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The folder as it is reached through the proxy."""
    repeat_at_once(monkeypatch)
    return Place(gcs.url, {**gcs.storage_options, "endpoint_url": proxy.url})


class TestObjectsOfGcs(PublicationContract, RemovalContract):
    publication = ("POST", "rewriteTo")
    accepted = Answer(200, b'{"done": true}')
    removals = (*((gcs_error(status), Retriable) for status in (409, 429, 500, 503)), (FORBIDDEN, OperatorRequired))

    def put(self, place: Place, target: str, contents: bytes, owner: str) -> None:
        place.fs.pipe_file(place.path(target), contents, metadata={MARK: owner})


def shown(error: BaseException) -> str:
    """Everything of an error that a log of the process shows."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("size_bytes", [0, 10, 5 * MIB, 5 * MIB + 1, 23 * MIB])
def test_a_file_of_any_size_comes_out_as_it_was(size_bytes: int, gcs: Place) -> None:
    contents = (os.urandom(1024) * (size_bytes // 1024 + 1))[:size_bytes]
    handle = upload(gcs, contents)
    assert handle.size_bytes == size_bytes
    assert gcs.targets() == []
    gcs.store.publish(handle, gcs.store.look(handle))
    assert gcs.fs.cat_file(gcs.path(TARGET)) == contents


def test_a_record_that_looks_like_the_end_of_a_request_is_written_as_it_is(gcs: Place) -> None:
    """gcsfs separates the parts of an upload of one request by ``--==0==``."""
    sink = gcs.sink(format="text")
    committable = voted(sink, pa.record_batch({"value": ["a", "--==0==--", "b"]}))
    sink.seal([committable], age_s=0)
    sink.commit(committable)
    [target] = gcs.targets()
    assert gcs.fs.cat_file(gcs.path(target)) == b"a\n--==0==--\nb\n"


def test_a_file_whose_upload_the_server_forgets_is_no_vote(proxied: Place, proxy: HttpProxy) -> None:
    proxy.disturb_all("POST", Answer(404), "upload_id")
    with pytest.raises(FileNotFoundError) as error:
        proxied.pre_commit()
    assert "upload_id=..." in str(error.value)
    [session] = {request.target.partition("upload_id=")[2] for request in proxy.sent("POST", "upload_id=")}
    assert session
    assert session not in shown(error.value)


def test_a_part_whose_request_is_lost_is_sent_again(proxied: Place, proxy: HttpProxy) -> None:
    proxy.disturb_next("POST", Lost.REQUEST, "upload_id")
    contents = os.urandom(12 * MIB)
    handle = upload(proxied, contents)
    assert proxied.fs.cat_file(proxied.path(f"_twopc/{handle.pending}")) == contents


def test_a_file_with_a_part_that_the_server_kept_twice_is_vetoed(proxied: Place, proxy: HttpProxy) -> None:
    """The emulator keeps a part twice if its reply is lost. Google ignores bytes that it has."""
    proxy.disturb_next("POST", Lost.REPLY, "upload_id")
    handle = upload(proxied, bytes(12 * MIB))
    obstacle = obstacle_seen(proxied.store.look(handle), handle)
    assert obstacle is not None
    assert f"{12 * MIB} were written" in obstacle


def test_a_file_that_is_discarded_ends_its_upload_and_never_becomes_an_object(proxied: Place, proxy: HttpProxy) -> None:
    file = proxied.store.create(ID, 0, TARGET)
    file.write(bytes(12 * MIB))
    sent = len(proxy.sent("POST"))
    assert sent > 1
    file.discard()
    assert len(proxy.sent("POST")) == sent
    assert len(proxy.sent("DELETE", "upload_id=")) == 1
    assert proxied.files() == []


def test_a_small_file_that_is_discarded_is_not_uploaded(proxied: Place, proxy: HttpProxy) -> None:
    file = proxied.store.create(ID, 0, TARGET)
    file.write(b"abc")
    file.discard()
    assert [request.method for request in proxy.requests] == ["DELETE"]


def test_a_forgotten_file_is_not_uploaded(proxied: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs uploads the buffer of a file that is collected, in a thread of its own."""
    uploaded: list[object] = []
    monkeypatch.setattr("gcsfs.core._defer_close", uploaded.append)
    file = proxied.store.create(ID, 0, TARGET)
    file.write(b"abc")
    del file
    gc.collect()
    assert uploaded == proxy.requests == []


def test_a_name_that_no_object_can_have_is_found_before_the_decision() -> None:
    store = Gcs("bucket", "orders", {})
    room = 1024 - len(f"orders/c=/{TARGET}")
    names = [f"c={'é' * (room // 2)}{'e' * more}/{TARGET}" for more in (room % 2, room % 2 + 1)]
    assert [store.obstacle(FileHandle(ID, "pending", name)) for name in names] == [
        None,
        "its name has 1025 bytes, and GCS takes 1024. Partition by columns with shorter values.",
    ]


def test_a_commit_takes_five_requests_per_file(proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    proxy.requests.clear()
    proxied.sink().commit(committable)
    assert [request.method for request in proxy.requests] == ["GET", "GET", "POST", "GET", "DELETE"]
    assert [request.target.rpartition("?")[2] for request in proxy.sent("POST")] == ["ifGenerationMatch=0"]


@pytest.mark.parametrize("lost", Lost)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_commit_whose_request_or_reply_is_lost_is_made_once(
    method: str, lost: Lost, proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_next(method, lost)
    proxied.sink().commit(committable)
    assert proxy.is_done
    assert proxied.files() == [the_file(committable).target]
    assert proxied.values() == ["a", "b"]


def test_a_large_object_is_rewritten_by_several_requests_each_with_the_condition(
    proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_next("POST", Answer(200, b'{"done": false, "rewriteToken": "so far"}'))
    proxied.sink().commit(committable)
    first, second = proxy.sent("POST", "rewriteTo")
    assert "rewriteToken" not in first.target
    assert "rewriteToken=so+far" in second.target.replace("%20", "+")
    assert all("ifGenerationMatch=0" in request.target for request in (first, second))
    assert proxied.values() == ["a", "b"]


def test_an_object_that_comes_between_the_look_and_the_rewrite_is_not_replaced(
    proxied: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator ignores the condition of a rewrite, so the proxy answers in its place."""
    committable, look = proxied.pre_commit(), Gcs.look
    target = proxied.path(the_file(committable).target)

    def then_another_comes(store: Gcs, file: FileHandle) -> Sight:
        seen = look(store, file)
        proxied.fs.pipe_file(target, b"somebody else's")
        return seen

    proxy.disturb_next("POST", gcs_error(412, "conditionNotMet"), "ifGenerationMatch=0")
    with monkeypatch.context() as patched:
        patched.setattr(Gcs, "look", then_another_comes)
        with pytest.raises(Retriable, match="has not appeared"):
            proxied.sink().commit(committable)
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name"):
        proxied.sink().commit(committable)
    assert proxied.fs.cat_file(target) == b"somebody else's"
    proxied.fs.rm_file(target)
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]


def test_a_copy_of_the_pending_file_by_another_program_is_foreign(gcs: Place) -> None:
    """It has the same contents, and may be removed by whoever made it."""
    committable = gcs.pre_commit()
    file = the_file(committable)
    gcs.fs.pipe_file(gcs.path(file.target), gcs.fs.cat_file(gcs.path(f"_twopc/{file.pending}")))
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name"):
        gcs.sink().commit(committable)


def test_a_bucket_that_is_gone_is_in_doubt_and_not_lost(proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_all("GET", Answer(404))
    with pytest.raises(OutcomeUnknown, match="there is no bucket"):
        proxied.sink().commit(committable)
    proxy.heal()
    proxied.store.discard(the_file(committable))
    with pytest.raises(TransactionLost):
        proxied.sink().commit(committable)


def test_pending_files_are_listed_page_by_page(
    proxied: Place, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(5):
        proxied.pre_commit(batch_id=batch_id)
    page = Gcs._page
    monkeypatch.setattr(Gcs, "_page", lambda store, prefix, **given: page(store, prefix, **{"maxResults": 2, **given}))
    assert len(list(proxied.sink().recover())) == 5
    assert len(proxy.sent("GET", "pageToken")) == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (gcs_error(408), Retriable),
        (gcs_error(409, "The object is being changed"), Retriable),
        (gcs_error(410, "The rewrite token is no longer available"), Retriable),
        (gcs_error(429), Retriable),
        (gcs_error(501), OperatorRequired),
        (gcs_error(502), Retriable),
        (gcs_error(503), Retriable),
        (gcs_error(403, "User Rate Limit Exceeded"), Retriable),
        (gcs_error(401, "Anonymous caller does not have storage.objects.get access"), OperatorRequired),
        (gcs_error(401, "Request had invalid authentication credentials."), OperatorRequired),
        (FORBIDDEN, OperatorRequired),
        (gcs_error(400, "?"), OutcomeUnknown),
        (Answer(200, b"<html>"), OutcomeUnknown),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else f"{value.status} {value.body[-40:].decode()}",
)
def test_an_error_is_never_a_success_and_a_later_commit_completes(
    answer: Answer, expected: type[TwoPhaseCommitError], proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit(batch_id=7)
    for method in ("POST", "GET"):
        proxy.disturb_all(method, answer)
        with pytest.raises(TwoPhaseCommitError, match="batch 7") as raised:
            proxied.sink().commit(committable)
        assert type(raised.value) is expected
        proxy.heal()
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (FORBIDDEN, ConfigurationError, "writer@project does not have"),
        (gcs_error(401, "Anonymous caller"), ConfigurationError, "Anonymous caller"),
        (Answer(404), ConfigurationError, "there is no bucket"),
        (gcs_error(503), Retriable, "does not answer"),
    ],
)
def test_a_store_that_refuses_stops_the_query_at_its_start(
    answer: Answer, expected: type[TwoPhaseCommitError], message: str, proxied: Place, proxy: HttpProxy
) -> None:
    proxy.disturb_all("GET", answer)
    with pytest.raises(expected, match=message):
        proxied.sink().open()


def test_a_missing_right_to_write_is_reported_with_the_first_record(proxied: Place, proxy: HttpProxy) -> None:
    proxy.disturb_all("POST", FORBIDDEN, "upload")
    with pytest.raises(ConfigurationError, match="writer@project"):
        proxied.pre_commit()


def test_a_target_that_may_not_be_looked_at_is_vetoed(proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_all("GET", FORBIDDEN)
    with pytest.raises(Refused, match="writer@project"):
        proxied.sink().seal([committable], age_s=0)


def test_the_check_finds_that_objects_may_not_be_removed(proxied: Place, proxy: HttpProxy) -> None:
    proxy.disturb_all("DELETE", FORBIDDEN)
    [check] = proxied.sink().check()
    assert check.result is CheckStatus.FAILED
    assert "writer@project" in check.found


def test_a_client_that_can_not_be_made_is_refused_at_the_start_without_its_secret(gcs: Place) -> None:
    sink = Place(gcs.url, {"token": {"type": "service_account", "private_key": "ya29.the-secret"}}).sink()
    with pytest.raises(ConfigurationError, match="its client can't be made") as refused:
        sink.open()
    assert "ya29" not in shown(refused.value) + repr(sink)
