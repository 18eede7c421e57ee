"""The contract and the races on other catalogs and stores: PostgreSQL as a catalog, and S3 over HTTP."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sinks.iceberg.conftest import Place, few, place_on_s3
from tests.sinks.iceberg.test_contract import SCHEMA, SPEC, PyIcebergAlone
from tests.sinks.iceberg.test_contract import TestAppend as Append
from tests.support.between import Between, once
from tests.support.http_proxy import HttpProxy, s3_error
from tests.support.postgres_server import PostgresServer
from tests.support.struck_server import KILLED, MOTO, S3_SERVERS, WRONG_KEYS, go_server, s3_server
from twopc import Committable, Round
from twopc.errors import OperatorRequired, Refused, Retriable


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module", params=S3_SERVERS)
def s3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options to reach a server."""
    with s3_server(request.param, tmp_path_factory.mktemp("s3")) as server:
        keys = {"key": "AKIAHUNTER2", "secret": "hunter2-secret"} if request.param == MOTO else {}  # it takes any
        yield {**server.storage_options, **keys}


def uri(server: PostgresServer) -> str:
    return f"postgresql://postgres:{server.password}@/postgres?host={server.conninfo.split('host=')[1].split()[0]}"


@pytest.fixture
def on_postgres(postgres: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    place = Place({"uri": uri(postgres), "warehouse": f"file://{tmp_path}/warehouse"})
    place.create(SCHEMA, SPEC)
    yield place
    place.catalog().drop_table("db.orders")
    place.close()


@pytest.fixture
def on_s3(s3: dict[str, str], tmp_path: Path) -> Iterator[Place]:
    place = place_on_s3(s3, tmp_path)
    place.create(SCHEMA, SPEC)
    yield place
    place.close()


@pytest.mark.long
class TestOnPostgres(Append):
    @pytest.fixture(autouse=True)
    def _place(self, on_postgres: Place) -> None:
        self.place = on_postgres


@pytest.mark.long
class TestOnS3(PyIcebergAlone):
    kills = 15

    @pytest.fixture(autouse=True)
    def _place(self, on_s3: Place) -> None:
        self.place = on_s3


@pytest.mark.long
@pytest.mark.crash
def test_a_catalog_in_postgres_that_restarts_is_waited_for(on_postgres: Place, postgres: PostgresServer) -> None:
    batch, sink = on_postgres.decided(["a"]), on_postgres.sink()
    postgres.kill()
    with pytest.raises(Retriable, match="no answer") as retriable:
        sink.commit_batch(0, batch)
    assert postgres.password not in str(retriable.value)
    postgres.start()
    on_postgres.close()
    sink.commit_batch(0, batch)
    assert on_postgres.values() == ["a"]


@pytest.mark.long
def test_two_queries_and_a_lost_race_in_postgres(on_postgres: Place) -> None:
    batch, one, other = on_postgres.decided(["a"]), on_postgres.sink(), on_postgres.sink()
    Between(before=once(lambda: other.commit_batch(0, batch))).stand(one)
    one.commit_batch(0, batch)
    one.commit_batch(1, on_postgres.decided(["b"], round=Round(1, 1)))
    assert on_postgres.values() == ["a", "b"]


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG_KEYS)
@pytest.mark.parametrize("name", KILLED)
def test_wrong_keys_call_an_operator_at_once_and_cost_no_batch(
    name: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    if (name, *wrong) == ("versitygw", "key"):
        pytest.skip("it answers that nothing is there")
    with go_server(name, tmp_path) as server:
        place = place_on_s3(server.storage_options, tmp_path)
        place.create()
        batch = place.decided(["a"])
        assert_refused(replace(place, properties={**place.properties, **of_iceberg(wrong)}), batch)
        place.sink().commit_batch(0, batch)
        assert place.values() == ["a"]


def of_iceberg(keys: Mapping[str, str]) -> dict[str, str]:
    names = {"key": "s3.access-key-id", "secret": "s3.secret-access-key"}
    return {names[name]: value for name, value in keys.items()}


def assert_refused(place: Place, batch: Sequence[Committable]) -> None:
    """Assert that each request of a driver stops the query, and none waits for an answer."""
    sink = place.bound()
    for ask in (
        sink.open,
        lambda: sink.seal(batch, 0.0),
        lambda: sink.commit_batch(0, batch),
        lambda: sink.complete(0, batch),
        lambda: sink.abort(batch[0]),
        lambda: list(sink.recover()),
    ):
        with pytest.raises((OperatorRequired, Refused), match="the store refuses"):
            ask()


REFUSALS = {"InvalidAccessKeyId": 403, "SignatureDoesNotMatch": 403, "AccessDenied": 403, "ExpiredToken": 400}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "refusal"),
    # pyarrow passes on no code of an answer to HEAD, and of one to GET only those that it knows.
    few(
        [("PUT", "AccessDenied"), ("HEAD", "AccessDenied"), ("GET", "InvalidAccessKeyId"), ("POST", "ExpiredToken")],
        *(("PUT", refusal) for refusal in REFUSALS if refusal != "AccessDenied"),
        *(("POST", refusal) for refusal in REFUSALS if refusal != "ExpiredToken"),
        *(("GET", refusal) for refusal in ("SignatureDoesNotMatch", "AccessDenied")),
    ),
)
def test_a_store_that_refuses_a_request_of_a_commit_calls_an_operator_and_the_batch_is_committed_later(
    method: str, refusal: str, on_s3: Place
) -> None:
    place = on_s3
    place.create()
    batch = place.decided(["a"])
    with HttpProxy(place.properties["s3.endpoint"]) as proxy:
        behind = replace(place, properties={**place.properties, "s3.endpoint": proxy.url})
        sink = behind.sink()
        proxy.disturb_all(method, s3_error(REFUSALS[refusal], refusal))
        with pytest.raises(OperatorRequired, match="the store refuses"):
            sink.commit_batch(0, batch)
    place.sink().commit_batch(0, batch)
    assert place.values() == ["a"]


def test_keys_of_s3_are_in_no_committable_and_no_note(on_s3: Place) -> None:
    batch = on_s3.decided(["a"])
    sink = on_s3.sink()
    [name] = [found.transaction_id for found in sink.recover()]
    note = sink._lake.io().read(f"{on_s3.table().location()}/_twopc/twopc.log.orders/{name}")
    told = f"{batch}{sink!r}{note!r}"
    assert not any(on_s3.properties[name] in told for name in ("s3.access-key-id", "s3.secret-access-key"))
