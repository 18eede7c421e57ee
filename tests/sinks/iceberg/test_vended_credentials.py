"""A REST catalog gives out credentials of S3 with each table, and they end: at any request, and in any process."""

import contextlib
import logging
import pickle
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from tests.sinks.iceberg.conftest import Place, few
from tests.support import networks
from tests.support.guarded_catalog import LOGIN, SECRET, GuardedCatalog
from tests.support.http_proxy import s3_error
from tests.support.rest_catalog import RestCatalogServer
from tests.support.restarted_query import RestartedQuery
from tests.support.s3_server import S3Server
from tests.support.vended_credentials import BUCKET, CheckedStore, VendingCatalog, Vendor
from twopc import Committable, Participant, Round
from twopc.errors import OperatorRequired, Refused, Retriable, RoundAborted
from twopc_iceberg import IcebergSink
from twopc_iceberg import table as of_tasks

pytestmark = [pytest.mark.skipif(networks.why_not() is not None, reason=str(networks.why_not())), pytest.mark.long]

REFUSALS = {
    "ExpiredToken": s3_error(400, "ExpiredToken", "The provided token has expired."),
    "InvalidAccessKeyId": s3_error(403, "InvalidAccessKeyId", "The Access Key Id you provided does not exist."),
    "AccessDenied": s3_error(403, "AccessDenied", "Access Denied"),
}

KINDS: dict[str, dict[str, Any]] = {
    "in config": {},
    "by prefix": {"by_prefix": True},
    "without their end": {"reports_end": False},
}


@dataclass(frozen=True)
class Lake:
    """A table on S3, the catalog that gives out credentials for it, and the store that looks at them."""

    place: Place
    catalog: VendingCatalog
    store: CheckedStore
    vendor: Vendor

    files: S3FileSystem

    def objects(self) -> list[str]:
        folder = self.place.table().location().removeprefix("s3://")
        found = self.files.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
        return sorted(info.path for info in found if info.type is FileType.File)

    def contents(self) -> list[bytes]:
        return [self.files.open_input_file(path).read() for path in self.objects()]

    def vote(self, sink: IcebergSink, value: str, batch_id: int = 0) -> Committable:
        """What a task has pre-committed, to which ``sink`` has travelled."""
        return self.place.vote([value], Round(1, batch_id), sink=pickle.loads(pickle.dumps(sink)))  # noqa: S301


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "log") as server:
        files(server).create_dir(BUCKET)
        yield server


def files(server: S3Server) -> S3FileSystem:
    """Return access that never ends."""
    keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
    return S3FileSystem(**keys, endpoint_override=server.endpoint_url, allow_bucket_creation=True)


@pytest.fixture
def vendor(request: pytest.FixtureRequest) -> Vendor:
    """What gives out credentials; of the first kind, unless a test names others."""
    return Vendor(**KINDS[getattr(request, "param", next(iter(KINDS)))])


of_each_kind = pytest.mark.parametrize("vendor", few([*KINDS][:1], *[*KINDS][1:]), indirect=True)


@contextlib.contextmanager
def lake_of(
    server: RestCatalogServer, s3: S3Server, vendor: Vendor, kind: type[VendingCatalog], **login: str
) -> Iterator[Lake]:
    with CheckedStore(s3.endpoint_url, vendor) as store:
        storage = {"s3.endpoint": store.url, "s3.region": "us-east-1"}
        with kind(server.host, server.warehouse, vendor, storage) as catalog:
            place = Place({"uri": catalog.url, **login})
            # The folder of the data is that of S3; only the server's own metadata files are on its disk.
            place.create(location=f"s3://{BUCKET}/{uuid.uuid4().hex}")
            yield Lake(place, catalog, store, vendor, files(s3))
            place.catalog().drop_table("db.orders")
            place.close()


@pytest.fixture
def lake(server: RestCatalogServer, s3: S3Server, vendor: Vendor) -> Iterator[Lake]:
    with lake_of(server, s3, vendor, VendingCatalog) as lake:
        yield lake


@pytest.fixture
def guarded(server: RestCatalogServer, s3: S3Server) -> Iterator[Lake]:
    """A lake whose catalog wants a login, and a warehouse and a prefix in paths, as Polaris and Unity Catalog do."""
    with lake_of(server, s3, Vendor(), GuardedCatalog, **LOGIN) as lake:
        yield lake


def commit(sink: IcebergSink, batch_id: int, votes: Sequence[Committable]) -> None:
    batch = sink.seal(votes, 0.0)
    sink.commit_batch(batch_id, batch)
    sink.complete(batch_id, batch)


@of_each_kind
def test_batches_are_written_with_what_the_catalog_gives_out(lake: Lake) -> None:
    sink = lake.place.sink()
    for batch_id in range(3):
        commit(sink, batch_id, [lake.vote(sink, f"{batch_id}", batch_id)])
    assert lake.place.values() == ["0", "1", "2"]
    assert lake.store.refused == 0


@pytest.mark.timeout(900)
@of_each_kind
@pytest.mark.parametrize("refusal", REFUSALS)
def test_credentials_that_end_at_any_request_neither_lose_nor_double_a_record(
    refusal: str, lake: Lake, tmp_path: Path
) -> None:
    lake.store.refusal = REFUSALS[refusal]
    query = RestartedQuery(lake.place.unbound, tmp_path / "log")
    written: list[str] = []

    def run(batch_id: int) -> list[Exception]:
        tasks = [[f"{batch_id} {task}"] for task in range(2)]
        written.extend(value for task in tasks for value in task)
        return query.run(batch_id, [pa.record_batch({"value": task}) for task in tasks])

    run(0)
    before = len(lake.store.requests)
    run(1)
    usual = len(lake.store.requests) - before
    errors: list[Exception] = []
    for batch_id, number in enumerate(range(usual), 2):
        lake.store.end_all_at(number)
        errors += run(batch_id)
        assert lake.store.has_ended_all
    assert lake.place.values() == sorted(written)
    assert list(lake.place.sink("log").recover()) == []
    assert lake.store.refused > 0
    assert errors
    told = "".join(text for error in errors for text in traceback.format_exception(error))
    assert not any(secret in told for secret in lake.vendor.secrets)


@of_each_kind
def test_a_task_gets_new_credentials_when_those_it_was_given_end_soon(lake: Lake, monkeypatch: Any) -> None:
    sink = lake.place.sink()
    lake.vote(sink, "before", 0)
    given = len(lake.vendor.given)
    lake.vote(sink, "valid", 1)
    assert len(lake.vendor.given) == given
    later = time.time() + (3600 if lake.vendor.reports_end else of_tasks.SHORTEST_LIFE_S) - 599
    lake.vendor.end_all()
    monkeypatch.setattr(time, "time", lambda: later)
    lake.vote(sink, "ended", 2)
    assert len(lake.vendor.given) > given
    assert lake.store.refused == 0


def test_a_task_whose_credentials_end_while_it_writes_fails_and_leaves_no_file(lake: Lake) -> None:
    sink = lake.place.sink()
    before = lake.objects()
    for batch_id in range(2):
        participant = Participant({"orders": sink}, Round(1, batch_id), partition=0)
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        lake.vendor.end_all()
        with pytest.raises(RoundAborted, match="can be run again") as aborted:
            participant.pre_commit()
        assert not any(secret in repr(aborted.value) for secret in lake.vendor.secrets)
        sink = lake.place.sink()
        for found in sink.recover():
            sink.abort(found)
    assert lake.objects() == before
    commit(sink, 2, [lake.vote(sink, "b", 2)])
    assert lake.place.values() == ["b"]


@pytest.mark.parametrize("refusal", few([*REFUSALS][:1], *[*REFUSALS][1:]))
@pytest.mark.parametrize("step", few(["commit_batch", "abort"], "seal", "recover"))
def test_a_driver_whose_credentials_have_ended_asks_for_new_ones(step: str, refusal: str, lake: Lake) -> None:
    lake.store.refusal = REFUSALS[refusal]
    votes = [lake.vote(lake.place.sink(), "a")]
    batch = lake.place.sink().seal(votes, 0.0)
    calls: dict[str, Callable[[IcebergSink], object]] = {
        "seal": lambda sink: sink.seal(votes, 0.0),
        "commit_batch": lambda sink: sink.commit_batch(0, batch),
        "abort": lambda sink: sink.abort(votes[0]),
        "recover": lambda sink: list(sink.recover()),
    }
    sink = lake.place.sink()
    lake.vendor.end_all()
    with contextlib.suppress(Retriable):  # then the coordinator calls again
        calls[step](sink)
    calls[step](sink)
    assert lake.place.values() == (["a"] if step == "commit_batch" else [])


@of_each_kind
def test_no_secret_that_the_catalog_gave_out_is_kept_or_told(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        query = RestartedQuery(lake.place.unbound, tmp_path / "log")
        errors = query.run(0, [pa.record_batch({"value": ["a"]})])
        for batch_id in range(1, 4):
            lake.store.end_all_at(5 * batch_id)
            errors += query.run(batch_id, [pa.record_batch({"value": [f"{batch_id}"]})])
        sink = lake.place.sink()
        vote = lake.vote(sink, "open", 4)
    told = [caplog.text, repr(sink), repr(vote), repr(sink._for_tasks), *map(repr, errors)]
    kept = [path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()]
    sent = [request.body for request in lake.catalog.requests]
    kept += [*lake.contents(), *sent]
    secrets = lake.vendor.secrets
    assert secrets
    assert not any(secret in text for text in told for secret in secrets)
    assert not any(secret.encode() in data for data in kept for secret in secrets)


@pytest.mark.timeout(900)
def test_a_login_that_ends_at_any_request_neither_loses_nor_doubles_a_record_and_is_shown_nowhere(
    guarded: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = guarded.catalog
    assert isinstance(catalog, GuardedCatalog)
    query = RestartedQuery(guarded.place.unbound, tmp_path / "log")
    values: list[str] = []
    errors: list[Exception] = []

    def run(batch_id: int) -> None:
        values.append(f"{batch_id}")
        errors.extend(query.run(batch_id, [pa.record_batch({"value": values[-1:]})]))

    with caplog.at_level(logging.DEBUG):
        run(0)
        before = len(catalog.requests)
        run(1)
        usual = len(catalog.requests) - before
        for batch_id, number in enumerate(range(usual), 2):
            catalog.end_tokens_at(number)
            run(batch_id)
    assert guarded.place.values() == sorted(values)
    assert list(guarded.place.sink("log").recover()) == []
    assert catalog.refused > 0
    told = [caplog.text, repr(guarded.place.sink()), *map(repr, errors)]
    kept = [path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()] + guarded.contents()
    for secret in (SECRET, *catalog.tokens):
        assert not any(secret in text for text in told)
        assert not any(secret.encode() in data for data in kept)


def test_a_login_that_the_catalog_refuses_is_refused_at_the_start_without_the_secret(guarded: Lake) -> None:
    sink = guarded.place.unbound(**{"catalog.credential": "etl:hunter2-is-another"})
    sink.bind("orders", "log")
    with pytest.raises(Refused) as refused:
        sink.open()
    assert "hunter2" not in f"{refused.value!r} {refused.value}"


def test_a_store_that_lists_no_files_as_s3_tables_ends_the_start_before_anything_is_written(
    lake: Lake, tmp_path: Path
) -> None:
    before = lake.objects()
    lake.store.disturb_all("GET", s3_error(405, "MethodNotAllowed"), "list-type")
    query = RestartedQuery(lake.place.unbound, tmp_path / "log")
    with pytest.raises(OperatorRequired, match="405"):
        query.run(0, [pa.record_batch({"value": ["a"]})])
    assert lake.objects() == before
