"""Several tables of a REST catalog become visible by one request. Whatever becomes of it, each shows its batch once."""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.sinks.iceberg.conftest import Place, few
from tests.support import networks
from tests.support.between import nothing, once
from tests.support.http_proxy import Answer, HttpProxy, Lost, Request
from tests.support.rest_catalog import ProxyIntoHost, RestCatalogServer
from twopc import Committable, Round, TwoPhaseCommitSink
from twopc.commits import commit_calls
from twopc.errors import OperatorRequired, OutcomeUnknown, Retriable, TransactionLost
from twopc_iceberg import IcebergSink

pytestmark = pytest.mark.skipif(networks.why_not() is not None, reason=str(networks.why_not()))

NAMES = ("db.orders", "db.items", "db.returns")

TOGETHER = "/transactions/commit"
"""The end of the URL of a joint commit."""

ONE_BY_ONE = "/tables/"
"""In the URL of a commit to one table."""

ERROR = b'{"error": {"message": "m", "type": "t", "code": %d}}'


@pytest.fixture
def places(server: RestCatalogServer, direct: ProxyIntoHost) -> Iterator[list[Place]]:
    """Three tables, each of which has a snapshot."""
    places = [Place({"uri": direct.url}, name) for name in NAMES]
    for place in places:
        place.create(location=f"{server.warehouse}/{uuid.uuid4().hex}")
        append(place, "old")
    yield places
    for place in places:
        catalog = place.catalog()
        if catalog.table_exists(place.name):
            catalog.drop_table(place.name)
        place.close()


class Batch:
    """A decided batch with a record for each table, and a coordinator's sinks, which reach the catalog by a proxy."""

    def __init__(self, places: Sequence[Place], proxy: HttpProxy, batch_id: int = 0) -> None:
        self.batch_id, self.places, self._proxy = batch_id, places, proxy
        self.decided = [place.decided([f"new {batch_id}"], round=Round(1, batch_id)) for place in places]
        self.sinks = [place.sink(**{"catalog.uri": through(proxy, place)}) for place in places]
        proxy.requests.clear()

    @property
    def due(self) -> list[tuple[TwoPhaseCommitSink[Any], Sequence[Committable]]]:
        return list(zip(self.sinks, self.decided, strict=True))

    def commit(self) -> None:
        """Commit as a coordinator does that repeats a call without an answer."""
        for call in commit_calls(self.batch_id, self.due):
            for _ in range(10):
                try:
                    call.commit()
                    break
                except Retriable:
                    continue

    def together(self) -> None:
        """The joint commit alone, as if the process was killed then."""
        IcebergSink.commit_together(self.batch_id, dict(zip(self.sinks, self.decided, strict=True)))

    @property
    def requests(self) -> tuple[int, int]:
        """How many requests have come to change several tables, and one."""
        return len(self._proxy.sent("POST", TOGETHER)), len(self._proxy.sent("POST", ONE_BY_ONE))


def through(proxy: HttpProxy, place: Place) -> str:
    """The URI by which a sink reaches the place's catalog by the proxy."""
    return proxy.url + urlsplit(place.properties["uri"]).path


def append(place: Place, value: str = "foreign") -> None:
    place.table().append(pa.table({"value": [value]}))


def tables_of(request: Request) -> list[str]:
    """The names of the tables that a joint request changes."""
    return [change["identifier"]["name"] for change in json.loads(request.body)["table-changes"]]


def on_its_way(
    proxy: ProxyIntoHost,
    before: Callable[[], object] = nothing,
    served: Callable[[Request, Callable[[Request], Answer]], Answer] = lambda request, serve: serve(request),
) -> None:
    """Have ``before`` happen as a joint request has left the sink, and ``served`` answer it."""
    forward: Any = proxy._forward

    def joint(request: Request, dropped: frozenset[str]) -> Answer:
        if not request.target.endswith(TOGETHER):
            return forward(request, dropped)  # type: ignore[no-any-return]
        before()
        return served(request, lambda each: forward(each, dropped | {"content-length"}))

    proxy._forward = joint  # type: ignore[method-assign]


def part_of(request: Request, table: str) -> Request:
    """The part of a joint request for one table, as a request of its own."""
    [change] = [each for each in json.loads(request.body)["table-changes"] if each["identifier"]["name"] == table]
    target = request.target.replace(TOGETHER, f"/namespaces/db/tables/{table}")
    return Request("POST", target, request.headers, json.dumps(change).encode())


def are_visible_once(places: Sequence[Place]) -> bool:
    return all(place.values() == ["new 0", "old"] for place in places)


@pytest.mark.parametrize("count", few([2], 3))
def test_tables_become_visible_by_one_request(count: int, places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places[:count], proxy)
    batch.commit()
    assert batch.requests == (1, 0)
    assert are_visible_once(batch.places)
    assert [place.marks() for place in batch.places] == [{"twopc.committed.twopc.log.orders": "0"}] * count


@pytest.mark.long
def test_batches_follow_each_other_by_one_request_each(places: list[Place], proxy: ProxyIntoHost) -> None:
    for batch_id in range(3):
        batch = Batch(places, proxy, batch_id)
        batch.commit()
        assert batch.requests == (1, 0)
    assert [place.values() for place in places] == [["new 0", "new 1", "new 2", "old"]] * 3


@pytest.mark.long
def test_one_table_is_committed_by_its_own_request(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places[:1], proxy)
    batch.commit()
    assert batch.requests == (0, 1)


@pytest.mark.long
def test_the_notes_are_gone_before_a_reader_can_see_their_files(places: list[Place], proxy: ProxyIntoHost) -> None:
    """Else an older coordinator's sweep could remove the files of a visible batch."""
    notes: list[list[str]] = []
    batch = Batch(places, proxy)
    on_its_way(proxy, lambda: notes.append([path for place in places for path in place.files() if "_twopc" in path]))
    batch.commit()
    assert notes == [[]]


@pytest.mark.long
def test_tables_without_a_snapshot_get_an_empty_one_each_first(places: list[Place], proxy: ProxyIntoHost) -> None:
    """Catalogs do not compare the sequence number of a snapshot without a parent: a late request would add records."""
    for place in places:
        place.replace()
    batch = Batch(places, proxy)
    batch.commit()
    assert batch.requests == (1, 3)
    [late] = proxy.sent("POST", TOGETHER)
    changes = json.loads(late.body)["table-changes"]
    assert ["set-properties" in [update["action"] for update in change["updates"]] for change in changes] == [True] * 3
    assert [place.values() for place in places] == [["new 0"]] * 3
    for place in places:
        place.replace()
    assert proxy.forwarded(late).status in (400, 409)
    assert [place.values() for place in places] == [[]] * 3


@pytest.mark.long
def test_a_sink_that_writes_to_the_same_table_as_another_commits_by_itself(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    """What one request with two changes of a table means, the specification does not say."""
    twin = places[0].sink("log2", **{"catalog.uri": proxy.url})
    batch = Batch(places[:2], proxy)
    of_twin = places[0].decided(["twin"], sink=twin)
    for call in commit_calls(0, [*batch.due, (twin, of_twin)]):
        call.commit()
    assert [tables_of(request) for request in proxy.sent("POST", TOGETHER)] == [["orders", "items"]]
    assert places[0].values() == ["new 0", "old", "twin"]


@pytest.mark.long
def test_sinks_with_other_properties_of_the_catalog_are_not_committed_together(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    batch = Batch(places[:2], proxy)
    batch.sinks[1] = places[1].sink(**{"catalog.uri": proxy.url, "catalog.credential": "me:hunter2"})
    proxy.requests.clear()
    batch.commit()
    assert batch.requests == (0, 2)
    assert "hunter2" not in str(batch.sinks[1].commit_group)


@pytest.mark.long
def test_a_catalog_that_does_not_list_the_request_is_not_sent_it(places: list[Place], proxy: ProxyIntoHost) -> None:
    config = json.loads(proxy.forwarded(Request("GET", "/v1/config", {}, b"")).body)
    config["endpoints"] = [each for each in config["endpoints"] if TOGETHER not in each]
    proxy.disturb_all("GET", Answer(200, json.dumps(config).encode()), "/v1/config")
    batch = Batch(places[:2], proxy)
    batch.commit()
    assert batch.requests == (0, 2)
    assert are_visible_once(batch.places)


def test_a_sql_catalog_has_no_joint_commit(place: Place) -> None:
    assert place.sink().commit_group is None


@pytest.mark.long
@pytest.mark.parametrize("status", few([501], 403))
def test_a_refusal_is_logged_once_and_the_catalog_is_not_asked_again(
    status: int, places: list[Place], proxy: ProxyIntoHost, caplog: pytest.LogCaptureFixture
) -> None:
    batch = Batch(places[:2], proxy)
    proxy.disturb_next("POST", Answer(status, ERROR % status), TOGETHER)
    with caplog.at_level(logging.WARNING):
        batch.commit()
    assert batch.requests == (1, 2)
    assert "joint commit of tables db.orders, db.items" in caplog.text
    following = Batch(batch.places, proxy, batch_id=1)
    following.sinks = batch.sinks
    following.commit()
    assert following.requests == (0, 2)


def test_a_lost_answer_is_found_in_the_tables(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    proxy.disturb_next("POST", Lost.REPLY, TOGETHER)
    batch.commit()
    assert batch.requests == (1, 0)
    assert are_visible_once(places)


@pytest.mark.long
def test_after_a_lost_request_each_table_is_asked_for_the_same_snapshot(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    """So the late request and the file of its attempt need no care."""
    batch = Batch(places, proxy)
    proxy.disturb_next("POST", Lost.REQUEST, TOGETHER)
    batch.commit()
    [late] = proxy.sent("POST", TOGETHER)
    assert batch.requests == (1, 3)
    proposed = {
        change["identifier"]["name"]: update["snapshot"]["snapshot-id"]
        for change in json.loads(late.body)["table-changes"]
        for update in change["updates"]
        if update["action"] == "add-snapshot"
    }
    assert {place.name.removeprefix("db."): place.table().metadata.current_snapshot_id for place in places} == proposed
    assert proxy.forwarded(late).status == 409
    assert are_visible_once(places)


@pytest.mark.long
@pytest.mark.parametrize("committed", few([1], 2))
def test_a_request_that_comes_after_some_tables_were_committed_changes_nothing_twice(
    committed: int, places: list[Place], proxy: ProxyIntoHost
) -> None:
    batch = Batch(places, proxy)
    proxy.disturb_next("POST", Lost.REQUEST, TOGETHER)
    batch.together()
    [late] = proxy.sent("POST", TOGETHER)
    for sink, decided in list(zip(batch.sinks, batch.decided, strict=True))[:committed]:
        sink.commit_batch(0, decided)
    proxy.forwarded(late)
    batch.commit()
    proxy.forwarded(late)
    assert are_visible_once(places)


@pytest.mark.long
def test_a_late_request_to_tables_that_were_rolled_back_is_refused(places: list[Place], proxy: ProxyIntoHost) -> None:
    """Each branch has the snapshot again that the request requires."""
    before = [place.table().metadata.current_snapshot_id for place in places]
    batch = Batch(places, proxy)
    proxy.disturb_next("POST", Lost.REQUEST, TOGETHER)
    batch.commit()
    [late] = proxy.sent("POST", TOGETHER)
    for place, snapshot_id in zip(places, before, strict=True):
        assert snapshot_id is not None
        place.table().manage_snapshots().set_current_snapshot(snapshot_id=snapshot_id).commit()
    assert proxy.forwarded(late).status in (400, 409)
    assert [place.values() for place in places] == [["old"]] * 3


@pytest.mark.long
def test_a_request_that_a_proxy_sends_twice_is_applied_once(places: list[Place], proxy: ProxyIntoHost) -> None:
    def twice(request: Request, serve: Callable[[Request], Answer]) -> Answer:
        assert serve(request).status == 204
        return serve(request)

    batch = Batch(places, proxy)
    on_its_way(proxy, served=twice)
    batch.commit()
    assert are_visible_once(places)


@pytest.mark.variants
@pytest.mark.parametrize("status", few([409, 500], 400, 401, 419, 429, 502, 503, 504))
@pytest.mark.parametrize("happens", [True, False])
def test_no_error_is_believed(status: int, happens: bool, places: list[Place], proxy: ProxyIntoHost) -> None:
    def served(request: Request, serve: Callable[[Request], Answer]) -> Answer:
        if happens:
            serve(request)
        return Answer(status, ERROR % status)

    batch = Batch(places[:2], proxy)
    on_its_way(proxy, served=served)
    batch.commit()
    assert are_visible_once(batch.places)
    assert batch.requests[1] == (0 if happens else 2)


@pytest.mark.long
@pytest.mark.parametrize(
    "answer", few([Answer(204)], Answer(200, b"<html>log in</html>", (("Content-Type", "text/html"),)))
)
def test_no_success_is_believed(answer: Answer, places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    proxy.disturb_next("POST", answer, TOGETHER)
    batch.commit()
    assert batch.requests == (1, 3)
    assert are_visible_once(places)


@pytest.mark.long
@pytest.mark.parametrize("answer", few([409], 204, 500, None))
def test_a_server_that_changes_a_part_of_the_tables_leaves_the_rest_to_their_own_commits(
    answer: int | None, places: list[Place], proxy: ProxyIntoHost
) -> None:
    """As Iceberg's own does when another writer comes between its look at all tables and its changes."""

    def one_of_them(request: Request, serve: Callable[[Request], Answer]) -> Answer:
        for table in tables_of(request)[1:2]:
            assert serve(part_of(request, table)).status == 200
        if answer is None:
            raise ConnectionError
        return Answer(answer, b"" if answer == 204 else ERROR % answer)

    batch = Batch(places, proxy)
    on_its_way(proxy, served=one_of_them)
    batch.commit()
    first, *more = (tables_of(request) for request in proxy.sent("POST", TOGETHER))
    assert first == ["orders", "items", "returns"]
    assert more[:1] == ([["orders", "returns"]] if answer == 409 else [])
    assert are_visible_once(places)


@pytest.mark.long
def test_all_tables_are_looked_at_and_asked_for_again_if_another_writer_was_faster_in_one(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    batch = Batch(places, proxy)
    on_its_way(proxy, once(lambda: append(places[0])))
    batch.commit()
    assert batch.requests == (2, 0)
    assert are_visible_once(places[1:])
    assert places[0].values() == ["foreign", "new 0", "old"]


@pytest.mark.long
def test_tables_commit_by_themselves_if_other_writers_are_faster_each_time(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    batch = Batch(places[:2], proxy)
    on_its_way(proxy, lambda: append(places[0]))
    batch.commit()
    assert batch.requests == (5, 2)
    assert are_visible_once(places[1:2])
    assert places[0].values() == [*["foreign"] * 5, "new 0", "old"]


@pytest.mark.long
def test_a_coordinator_that_was_replaced_and_its_successor_make_the_batch_visible_once(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    old, new = Batch(places, proxy), [place.sink() for place in places]

    def take_over() -> None:
        due: list[tuple[TwoPhaseCommitSink[Any], Sequence[Committable]]] = list(zip(new, old.decided, strict=True))
        for call in commit_calls(0, due):
            call.commit()

    on_its_way(proxy, once(take_over))
    old.commit()
    assert are_visible_once(places)


@pytest.mark.long
def test_a_table_that_has_the_batch_is_left_out(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    places[0].sink().commit_batch(0, batch.decided[0])
    batch.sinks[0]._lake.forget_table()
    batch.commit()
    assert [tables_of(request) for request in proxy.sent("POST", TOGETHER)] == [["items", "returns"]]
    assert are_visible_once(places)


@pytest.mark.long
def test_a_table_that_was_dropped_does_not_hold_back_the_others(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    places[0].catalog().drop_table(places[0].name)
    first, *others = commit_calls(0, batch.due)
    with pytest.raises(OutcomeUnknown, match=r"db\.orders.*no such table"):
        first.commit()
    for call in others:
        call.commit()
    assert are_visible_once(places[1:])


@pytest.mark.long
def test_a_table_whose_files_are_gone_does_not_hold_back_the_others(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    table = places[0].table()
    table.io.delete(str(batch.decided[0][0].handle["manifest"]))
    first, *others = commit_calls(0, batch.due)
    with pytest.raises(TransactionLost, match="is gone"):
        first.commit()
    for call in others:
        call.commit()
    assert are_visible_once(places[1:])
    assert places[0].values() == ["old"]


@pytest.mark.long
def test_a_table_that_lost_the_spec_of_its_files_on_the_way_calls_an_operator(
    places: list[Place], proxy: ProxyIntoHost
) -> None:
    """This catalog does not look whether the specs are there that the request names."""

    batch = Batch(places, proxy)
    places[0].add_partition_field()
    for sink in batch.sinks:
        sink.open()
    proxy.requests.clear()
    on_its_way(proxy, lambda: places[0].remove_spec(0))
    first, *others = commit_calls(0, batch.due)
    with pytest.raises(OperatorRequired, match="removed from the table as it was committed"):
        first.commit()
    for call in others:
        call.commit()
    assert batch.requests == (1, 0)
    assert are_visible_once(places[1:])


@pytest.mark.long
def test_a_table_with_a_token_of_its_own_commits_by_itself(places: list[Place], proxy: ProxyIntoHost) -> None:
    batch = Batch(places, proxy)
    batch.sinks[0]._lake.table().config["token"] = "of-orders"  # noqa: S105
    batch.commit()
    assert [tables_of(request) for request in proxy.sent("POST", TOGETHER)] == [["items", "returns"]]
    assert are_visible_once(places)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("has_request", [True, False])
def test_a_server_that_is_killed_at_a_joint_commit_loses_and_doubles_nothing(
    has_request: bool, places: list[Place], proxy: ProxyIntoHost, server: RestCatalogServer
) -> None:
    def killed(request: Request, serve: Callable[[Request], Answer]) -> Answer:
        if has_request:
            serve(request)
        server.kill()
        raise ConnectionError

    batch = Batch(places, proxy)
    forward = proxy._forward
    on_its_way(proxy, served=killed)
    batch.together()
    server.start()
    proxy._forward = forward  # type: ignore[method-assign]
    batch.commit()
    assert are_visible_once(places)
