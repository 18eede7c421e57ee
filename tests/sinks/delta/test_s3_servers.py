"""The Delta sink keeps its contract on S3 servers of several makers, also when they are killed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.delta.conftest import Bucket
from tests.sinks.delta.stores_contract import TableContract, require_exact_through_kills
from tests.support.struck_server import (
    KILLED,
    S3_SERVERS,
    STRIKES,
    WRONG_KEYS,
    StruckServer,
    Way,
    go_server,
    s3_server,
)
from tests.support.typed_records import typed
from twopc.errors import ConfigurationError, OperatorRequired


@pytest.fixture(scope="module", params=S3_SERVERS)
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The options to reach a server."""
    with s3_server(request.param, tmp_path_factory.mktemp("s3")) as server:
        yield server.storage_options


@pytest.fixture
def bucket(storage: dict[str, Any]) -> Bucket:
    return Bucket.created(storage)


@pytest.mark.long
class TestOnS3(TableContract):
    @pytest.fixture
    def typed_bucket(self, storage: dict[str, Any]) -> Bucket:
        return Bucket.created(storage, typed().schema)


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG_KEYS)
@pytest.mark.parametrize("name", KILLED)
def test_wrong_keys_call_an_operator_at_once_and_cost_no_batch(
    name: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    with go_server(name, tmp_path) as server:
        bucket = Bucket.created(server.storage_options)
        batch = [bucket.pre_commit(["a"])]
        sink = replace(bucket, storage={**bucket.storage, **wrong}).bound()
        for before in (sink.open, lambda: sink.seal(batch, 0.0)):
            with pytest.raises(ConfigurationError, match="the store refuses"):
                before()
        for after in (lambda: sink.commit_batch(0, batch), lambda: list(sink.recover()), lambda: sink.abort(batch[0])):
            with pytest.raises(OperatorRequired, match="the store refuses"):
                after()
        bucket.sink().commit_batch(0, batch)
        assert bucket.values() == ["a"]


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "lost"), STRIKES)
@pytest.mark.parametrize("name", KILLED)
def test_a_server_that_is_killed_at_any_request_neither_loses_nor_doubles_a_record(
    name: str, way: Way, lost: int, tmp_path: Path
) -> None:
    with go_server(name, tmp_path / "s3") as server, StruckServer(server) as proxy:
        bucket = Bucket.created(server.storage_options)
        require_exact_through_kills(proxy, bucket, bucket.through(proxy), tmp_path / "log", way, lost)
