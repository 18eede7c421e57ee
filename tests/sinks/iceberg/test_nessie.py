"""Joint commits to Nessie, which makes all tables of one visible at one moment."""

from collections.abc import Iterator

import pytest
from pyarrow.fs import S3FileSystem

from tests.sinks.iceberg.conftest import Place
from tests.sinks.iceberg.test_joint_commit import (  # noqa: F401  # also run here
    NAMES,
    Batch,
    append,
    test_a_coordinator_that_was_replaced_and_its_successor_make_the_batch_visible_once,
    test_a_lost_answer_is_found_in_the_tables,
    test_a_request_that_a_proxy_sends_twice_is_applied_once,
    test_a_request_that_comes_after_some_tables_were_committed_changes_nothing_twice,
    test_a_server_that_is_killed_at_a_joint_commit_loses_and_doubles_nothing,
    test_a_table_that_has_the_batch_is_left_out,
    test_after_a_lost_request_each_table_is_asked_for_the_same_snapshot,
    test_all_tables_are_looked_at_and_asked_for_again_if_another_writer_was_faster_in_one,
    test_batches_follow_each_other_by_one_request_each,
)
from tests.support.nessie import BUCKET, NessieProxy, NessieServer
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "log") as s3:
        keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
        S3FileSystem(**keys, endpoint_override=s3.endpoint_url, allow_bucket_creation=True).create_dir(BUCKET)
        yield s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[NessieServer]:
    with NessieServer(tmp_path_factory.mktemp("nessie"), s3) as server:
        yield server


@pytest.fixture
def proxy(server: NessieServer) -> Iterator[NessieProxy]:
    with server.proxy() as proxy:
        yield proxy


@pytest.fixture
def places(server: NessieServer, s3: S3Server) -> Iterator[list[Place]]:
    """Three tables, each of which has a snapshot."""
    keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.region": "us-east-1"}
    with server.proxy() as direct:
        places = [
            Place({"uri": f"{direct.url}/iceberg", "s3.endpoint": s3.endpoint_url, **keys}, name) for name in NAMES
        ]
        for place in places:
            place.create()
            append(place, "old")
        yield places
        for place in places:
            place.catalog().drop_table(place.name)
            place.close()


def test_all_tables_change_by_one_commit_of_the_catalog(
    server: NessieServer, places: list[Place], proxy: NessieProxy
) -> None:
    for batch_id in range(2):
        Batch(places, proxy, batch_id).commit()
    assert server.changed_together()[:2] == [{"orders", "items", "returns"}] * 2
    assert [place.values() for place in places] == [["new 0", "new 1", "old"]] * 3
