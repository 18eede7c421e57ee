"""The contract on a REST catalog, Iceberg's own, behind a proxy that loses, delays and repeats requests and answers."""

import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sinks.iceberg.conftest import COMMIT, Place, few
from tests.sinks.iceberg.test_contract import SCHEMA, SPEC
from tests.sinks.iceberg.test_contract import TestAppend as Append
from tests.support import networks
from tests.support.http_proxy import Answer, HttpProxy, Lost
from tests.support.rest_catalog import ProxyIntoHost, RestCatalogServer
from twopc import Round
from twopc.errors import OperatorRequired, OutcomeUnknown, Refused, Retriable
from twopc_iceberg import IcebergSink, catalogs

pytestmark = pytest.mark.skipif(networks.why_not() is not None, reason=str(networks.why_not()))


@pytest.fixture
def rest(server: RestCatalogServer, direct: HttpProxy) -> Iterator[Place]:
    place = Place({"uri": direct.url})
    place.create(SCHEMA, SPEC, location=f"{server.warehouse}/{uuid.uuid4().hex}")
    yield place
    place.catalog().drop_table("db.orders")
    place.close()


@pytest.mark.long
class TestOnRest(Append):
    @pytest.fixture(autouse=True)
    def _place(self, rest: Place) -> None:
        self.place = rest


def disturbed(rest: Place, proxy: HttpProxy) -> IcebergSink:
    return rest.sink(**{"catalog.uri": proxy.url})


@pytest.mark.long
def test_a_lost_answer_is_found_in_the_table(rest: Place, proxy: ProxyIntoHost) -> None:
    batch, sink = rest.decided(["a"], ["b"]), disturbed(rest, proxy)
    proxy.disturb_next("POST", Lost.REPLY, COMMIT)
    sink.commit_batch(0, batch)
    assert proxy.is_done
    assert rest.values() == ["a", "b"]
    assert rest.appends() == 1


def test_a_lost_request_is_repeated_and_comes_late(rest: Place, proxy: ProxyIntoHost) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    proxy.disturb_next("POST", Lost.REQUEST, COMMIT)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    late = proxy.sent("POST", COMMIT)[-1]
    sink.commit_batch(0, batch)
    assert proxy.forwarded(late).status == 409
    assert rest.values() == ["a"]


@pytest.mark.long
@pytest.mark.parametrize("number", few([1], 0))
def test_a_late_request_to_a_table_that_was_replaced_adds_no_record(
    number: int, rest: Place, proxy: ProxyIntoHost
) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    sent = len(proxy.sent("POST", COMMIT))
    proxy.disturb_next("POST", Lost.REQUEST, lambda _: len(proxy.sent("POST", COMMIT)) == sent + number + 1)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    late = proxy.sent("POST", COMMIT)[-1]
    rest.sink().commit_batch(0, batch)
    rest.replace()
    proxy.forwarded(late)
    assert rest.values() == []


@pytest.mark.long
def test_a_batch_of_two_partition_specs_is_committed(rest: Place) -> None:
    rest.sink("log2").commit_batch(0, rest.decided(["first"], sink=rest.sink("log2")))
    batch = rest.decided(["a"])
    with rest.table().update_spec() as update:
        update.remove_field("flag")
    spec = rest.table().metadata.default_spec_id
    rest.sink().commit_batch(0, batch)
    assert rest.values() == ["a", "first"]
    assert rest.table().metadata.default_spec_id == spec


@pytest.mark.long
def test_a_request_that_comes_late_to_a_table_that_was_rolled_back_is_refused(
    rest: Place, proxy: ProxyIntoHost
) -> None:
    rest.sink("log2").commit_batch(0, rest.decided(["first"], sink=rest.sink("log2")))
    before = rest.snapshot().snapshot_id
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    proxy.disturb_next("POST", Lost.REQUEST, COMMIT)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    late = proxy.sent("POST", COMMIT)[-1]
    sink.commit_batch(0, batch)
    rest.table().manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    assert proxy.forwarded(late).status in (400, 409)
    assert rest.values() == ["first"]


@pytest.mark.variants
@pytest.mark.parametrize("status", few([409, 502], 500, 503, 504))
def test_an_error_that_stands_for_success_is_not_believed(status: int, rest: Place, proxy: ProxyIntoHost) -> None:
    """As a gateway answers that repeats requests: the first one was made, and the second one's answer is passed on."""
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    forward = proxy._forward

    def once(request: object, dropped: frozenset[str]) -> Answer:
        proxy._forward = forward  # type: ignore[method-assign]
        forward(request, dropped)  # type: ignore[arg-type]
        return Answer(status, b'{"error": {"message": "m", "type": "t", "code": %d}}' % status)

    proxy._forward = once  # type: ignore[method-assign]
    sink.commit_batch(0, batch)
    assert rest.values() == ["a"]
    assert rest.appends() == 1


@pytest.mark.long
@pytest.mark.parametrize("status", few([503], 500, 502, 504))
def test_a_catalog_that_fails_is_asked_again_without_a_trace(status: int, rest: Place, proxy: ProxyIntoHost) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    proxy.disturb_next("POST", Answer(status, b"{}"), COMMIT)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    sink.commit_batch(0, batch)
    sink.commit_batch(1, rest.decided(["b"], round=Round(1, 1)))
    assert rest.values() == ["a", "b"]


@pytest.mark.advice("the catalog or the store refuses: …")
def test_a_principal_without_the_right_to_commit_calls_an_operator(rest: Place, proxy: ProxyIntoHost) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    proxy.disturb_next("POST", Answer(403, b'{"error": {"message": "no", "type": "t", "code": 403}}'), COMMIT)
    with pytest.raises(OperatorRequired, match=r"grant the rights .* and start again"):
        sink.commit_batch(0, batch)
    sink.commit_batch(0, batch)
    assert rest.values() == ["a"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "raises"),
    [
        (Answer(501, b"<html>not here</html>"), OperatorRequired),
        (Answer(200, b"<html>log in</html>", (("Content-Type", "text/html"),)), Retriable),
        (Answer(200, b"{}"), Retriable),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_of_a_proxy_is_no_success(
    method: str, answer: Answer, raises: type[Exception], rest: Place, proxy: ProxyIntoHost
) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    if method == "GET":
        sink.close()
    proxy.disturb_all(method, answer, COMMIT)
    with pytest.raises(raises):
        sink.commit_batch(0, batch)
    assert rest.values() == []
    with pytest.raises(Refused if raises is OperatorRequired else raises):
        sink.open()
    proxy.heal()
    sink.commit_batch(0, batch)
    assert rest.values() == ["a"]


def test_credentials_that_are_about_to_end_are_renewed_before_files_are_reached(rest: Place) -> None:
    batch, sink = rest.decided(["a"]), rest.sink()
    sink._lake.table().io.properties["s3.session-token-expires-at-ms"] = f"{time.time() * 1000:.0f}"
    before = sink._lake._table
    sink.commit_batch(0, batch)
    assert sink._lake._table is not before
    assert "s3.session-token-expires-at-ms" not in sink._lake.io().properties


@pytest.mark.variants
@pytest.mark.parametrize("kind", ["credential", "oauth2"])
def test_a_request_for_a_token_that_nobody_answers_ends(
    kind: str, rest: Place, proxy: ProxyIntoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "HTTP_TIMEOUT_S", (1, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/tokens"
        sink = rest.unbound(**{"catalog.uri": proxy.url})
        properties: dict[str, Any] = {"credential": "me:hunter2", "oauth2-server-uri": url}
        if kind == "oauth2":
            of_auth = {"client_id": "me", "client_secret": "hunter2", "token_url": url}
            properties = {"auth": {"type": "oauth2", "oauth2": of_auth}}
        monkeypatch.setattr("twopc_iceberg.catalogs.Config.get_catalog_config", lambda *_: properties)
        sink.bind("orders", "log")
        with pytest.raises(Retriable, match="no answer") as retriable:
            sink.open()
    assert "hunter2" not in str(retriable.value)


@pytest.mark.long
@pytest.mark.crash
def test_a_catalog_that_was_killed_is_waited_for(rest: Place, server: RestCatalogServer, proxy: ProxyIntoHost) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    server.kill()
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    server.start()
    sink.commit_batch(0, batch)
    assert rest.values() == ["a"]


@pytest.mark.long
def test_a_table_that_the_catalog_denies_for_a_moment_calls_an_operator_and_loses_nothing(
    rest: Place, proxy: ProxyIntoHost
) -> None:
    batch, sink = rest.decided(["a"]), disturbed(rest, proxy)
    sink.close()
    proxy.disturb_next("GET", Answer(404, b'{"error": {"message": "no", "type": "t", "code": 404}}'), COMMIT)
    with pytest.raises(OutcomeUnknown, match="no such table"):
        sink.commit_batch(0, batch)
    rest.sink().commit_batch(0, batch)
    assert rest.values() == ["a"]
