"""Files on a real HDFS: what is refused, nodes that are away, and logs of complete batches."""

import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.files.conftest import Place
from tests.support.hdfs_server import TEST_AT_MOST_S, HdfsServer
from tests.support.http_proxy import Answer, HttpProxy, Lost, hdfs_error
from twopc import Committable, Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, Retriable, TransactionLost, TwoPhaseCommitError
from twopc_files.file_names import decidable_files

TOKEN = "the-delegation-token"  # noqa: S105  # of nobody

pytestmark = [pytest.mark.long, pytest.mark.timeout(TEST_AT_MOST_S)]


def test_a_file_of_several_blocks_of_the_client_is_whole(hdfs: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [f"{n:07} {'x' * 1000}" for n in range(11_000)]
    monkeypatch.setattr("twopc.stores.webhdfs.BLOCK_BYTES", 4 * 1024 * 1024)
    hdfs.sink().commit(hdfs.pre_commit(*values))  # 11 MB
    assert hdfs.values() == values


def stranger(place: Place) -> Place:
    return Place(place.url, {"user": "stranger"})


def test_a_user_who_may_not_write_is_refused_at_the_start(hdfs: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"AccessControlException.*stranger"):
        stranger(hdfs).pre_commit()


def test_a_commit_without_the_right_calls_an_operator_and_succeeds_with_it(hdfs: Place) -> None:
    committable = hdfs.pre_commit(batch_id=7)
    with pytest.raises(OperatorRequired, match=r"batch 7.*AccessControlException"):
        stranger(hdfs).sink().commit(committable)
    hdfs.sink().commit(committable)
    assert hdfs.values() == ["a", "b"]


def test_a_foreign_file_that_appears_amid_a_commit_is_never_replaced(
    hdfs: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = hdfs.pre_commit()
    [file] = decidable_files(committable)
    target = hdfs.path(file.target)
    foreign = b"x" * (file.size_bytes or 0)
    sink = hdfs.sink()
    rename = type(sink._store._fs).mv  # type: ignore[attr-defined]  # of Remote

    def too_late(*arguments: object) -> None:
        hdfs.fs.pipe_file(target, foreign)
        rename(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(type(sink._store._fs), "mv", too_late)  # type: ignore[attr-defined]
        with pytest.raises(Retriable, match="has come to exist"):
            sink.commit(committable)
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name"):
        sink.commit(committable)
    assert hdfs.fs.cat_file(target) == foreign


def test_a_wrong_name_node_is_refused_or_asked_again_and_its_token_is_not_shown() -> None:
    place = Place("webhdfs://127.0.0.1:1/orders", {"token": "the-token"})
    with pytest.raises(Retriable, match="does not answer") as told:
        place.sink().open()
    assert "the-token" not in str(told.value) + repr(place.sink()) + repr(place.store)


@pytest.fixture
def proxy(hdfs_server: HdfsServer) -> Iterator[HttpProxy]:
    with HttpProxy(f"http://127.0.0.1:{hdfs_server.port}") as proxy:
        yield proxy


@pytest.fixture
def proxied(hdfs: Place, hdfs_server: HdfsServer, proxy: HttpProxy) -> Place:
    """The folder as it is reached through the proxy."""
    return Place(
        hdfs.url.replace(f"127.0.0.1:{hdfs_server.port}", proxy.url.removeprefix("http://")), hdfs.storage_options
    )


@pytest.mark.parametrize("lost", Lost)
def test_a_rename_whose_request_or_reply_is_lost_is_repeated(lost: Lost, proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_next("PUT", lost, "op=RENAME")
    with pytest.raises(Retriable):
        proxied.sink().commit(committable)
    assert proxy.is_done
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]
    assert list(proxied.sink().recover()) == []


def test_a_commit_ends_with_an_edit_though_another_process_has_renamed_the_file(
    proxied: Place, proxy: HttpProxy
) -> None:
    """The NameNode shows a rename before its journal is synced, and syncs it before it answers a later edit."""
    committable = proxied.pre_commit()
    proxied.sink().commit(committable)
    proxy.requests.clear()
    proxied.sink().commit(committable)
    assert proxy.sent("PUT", "op=RENAME") == []
    assert len(proxy.sent("PUT", "op=SETTIMES")) == 1
    proxy.disturb_all("PUT", Lost.REQUEST, "op=SETTIMES")
    with pytest.raises(Retriable):
        proxied.sink().commit(committable)


def test_the_checks_notice_that_a_commit_would_leave_an_encryption_zone(proxied: Place, proxy: HttpProxy) -> None:
    cause = "/a can't be moved from an encryption zone."
    refused = hdfs_error(403, "IOException", cause)
    proxy.disturb_next("PUT", refused, "op=RENAME")
    [failed] = [check for check in proxied.sink().check() if check.result is not CheckStatus.PASSED]
    assert cause in str(failed)
    committable = proxied.pre_commit()
    proxy.disturb_next("PUT", refused, "op=RENAME")
    with pytest.raises(OperatorRequired, match=cause):
        proxied.sink().commit(committable)


def test_an_error_of_httpfs_is_waited_for(proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    proxy.disturb_next("PUT", hdfs_error(500, "IOException", "Failed on local exception"), "op=RENAME")
    with pytest.raises(Retriable, match="Failed on local exception"):
        proxied.sink().commit(committable)
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]


@pytest.mark.parametrize(
    "answer",
    [
        *(Answer(401), Answer(403), Answer(500), Lost.REPLY),
        hdfs_error(403, "InvalidToken", f"token {TOKEN} is expired"),
    ],
    ids=str,
)
def test_no_credential_is_in_an_error_of_a_decided_file(answer: Any, proxied: Place, proxy: HttpProxy) -> None:
    committable = proxied.pre_commit()
    with_token = Place(proxied.url, {"token": TOKEN})
    for method in ("GET", "PUT", "DELETE"):
        proxy.disturb_all(method, answer)
    shown = [repr(with_token.sink()), repr(with_token.store), repr(committable)]
    for ask in (
        with_token.sink().open,
        partial(with_token.sink().seal, [committable], age_s=0),
        partial(with_token.sink().commit, committable),
        partial(with_token.pre_commit, batch_id=1),
    ):
        with pytest.raises((OSError, TwoPhaseCommitError)) as told:
            ask()
        assert not isinstance(told.value, TransactionLost)
        shown += traceback.format_exception(told.value)
    assert any(TOKEN in request.target for request in proxy.requests)
    assert not [text for text in shown if TOKEN in text]
    proxy.heal()
    proxied.sink().commit(committable)
    assert proxied.values() == ["a", "b"]


@pytest.mark.crash
def test_a_decided_file_is_committed_after_its_name_node_was_killed_and_started_again(
    hdfs: Place, hdfs_server: HdfsServer
) -> None:
    committable = hdfs.pre_commit()
    sink = hdfs.sink()
    hdfs_server.name_node.kill()
    with pytest.raises(Retriable):
        sink.commit(committable)
    hdfs_server.start()
    sink.commit(committable)
    assert hdfs.values() == ["a", "b"]


def test_a_name_node_in_safe_mode_is_asked_again(hdfs: Place, hdfs_server: HdfsServer) -> None:
    committable = hdfs.pre_commit()
    hdfs_server.admin("-safemode", "enter")
    try:
        with pytest.raises(Retriable, match="safe mode"):
            hdfs.sink().commit(committable)
    finally:
        hdfs_server.admin("-safemode", "leave")
    hdfs.sink().commit(committable)
    assert hdfs.values() == ["a", "b"]


@pytest.mark.crash
def test_without_a_data_node_a_task_votes_no_and_a_commit_goes_on(hdfs: Place, hdfs_server: HdfsServer) -> None:
    committable = hdfs.pre_commit()
    hdfs_server.data_node.kill()
    with pytest.raises((OSError, TwoPhaseCommitError), match=r"could not be written|Connection refused"):
        hdfs.pre_commit(batch_id=1)
    hdfs.sink().commit(committable)  # the NameNode alone renames
    hdfs_server.start()
    assert hdfs.values() == ["a", "b"]
    for found in hdfs.sink().recover():
        hdfs.sink().abort(found)
    assert len(hdfs.files()) == 1


@pytest.mark.crash
def test_a_writer_that_is_cut_off_amid_a_file_leaves_nothing_that_is_decided(
    hdfs: Place, hdfs_server: HdfsServer
) -> None:
    def vote() -> Committable:
        with Participant({"orders": hdfs.sink()}, Round(1, 0), partition=0) as participant:
            participant.write("orders", pa.record_batch({"value": ["x" * 1000] * 11_000}))
            hdfs_server.data_node.kill()
            return participant.pre_commit()["orders"]

    with pytest.raises(OSError, match=r"could not be written: no answer: ConnectionRefusedError"):
        vote()
    hdfs_server.start()
    for found in hdfs.sink().recover():
        hdfs.sink().abort(found)
    assert hdfs.files() == []
