"""What every store does alike, whichever it is: files of one transaction, their names, and logs of complete batches."""

import json
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sinks.files.conftest import ON_AZURE, ON_GCS, ON_HDFS, Place
from tests.sinks.files.uploads import the_file
from twopc import Committable, Round
from twopc.errors import CorruptLog, OperatorRequired, Refused, Retriable, TransactionLost
from twopc_files import committed_files
from twopc_files.batch_log import CommittedFile
from twopc_files.file_names import decidable_files
from twopc_files.sink import FileSink
from twopc_files.spark_metadata import spark_metadata
from twopc_files.stores.by_protocol import store_at

FOLDERS = ("day=2024-05-01/city=Bern", "day=2024-05-02/city=Zürich %2F", "day=2024-05-01/city=Bern", "")


def pending_in_folders(sink: FileSink, batch_id: int = 0, folders: tuple[str, ...] = FOLDERS) -> Committable:
    """What a participant has pre-committed that wrote one file for each of ``folders``, of one record each."""
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, batch_id), 0))
    for number, folder in enumerate(folders):
        with transaction.create(folder) as file:
            file.write(b'{"value": "%d"}\n' % number)
    transaction.records = len(folders)
    return sink.pre_commit(transaction)


def test_all_files_of_a_transaction_appear_in_their_folders_and_none_before_the_commit(place: Place) -> None:
    committable = pending_in_folders(place.sink())
    place.sink().seal([committable], age_s=0)
    assert place.targets() == []
    place.sink().commit(committable)
    assert sorted(target.rpartition("/")[0] for target in place.targets()) == sorted(FOLDERS)
    assert sorted(place.values()) == ["0", "1", "2", "3"]
    assert list(place.sink().recover()) == []


def test_a_transaction_that_is_half_published_is_recovered_as_the_decided_one_and_completed(place: Place) -> None:
    committable = pending_in_folders(place.sink())
    store, [first, *_] = place.store, decidable_files(committable)
    store.publish(first, store.look(first))
    [found] = place.sink().recover()
    assert found.is_same_transaction(committable)
    place.sink().commit(committable)
    assert sorted(place.values()) == ["0", "1", "2", "3"]
    assert list(place.sink().recover()) == []


@pytest.mark.parametrize("store", [ON_AZURE, ON_GCS, "memory"])
def test_a_commit_that_died_before_it_removed_what_was_pending_is_completed_by_the_next(
    store: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(store)
    committable = place.pre_commit()
    file = the_file(committable)
    place.store.publish(file, place.store.look(file))
    assert len(place.files()) == 2
    place.sink().commit(committable)
    assert place.files() == [file.target]


@pytest.mark.variants
@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize(
    ("store", "call"),
    [
        ("s3", "call"),
        ("memory", "info"),
        ("renaming", "info"),
        pytest.param("azure", "call", marks=ON_AZURE.marks),
        pytest.param("gcs", "found", marks=ON_GCS.marks),
    ],
)
def test_a_file_that_another_process_publishes_amid_a_commit_is_not_taken_for_lost(
    store: str, call: str, number: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any request but the first."""
    place: Place = request.getfixturevalue(store)
    committable = place.pre_commit()
    owner: Any = type(place.fs if call == "info" else place.store)
    real, asked = getattr(owner, call), list[str]()

    def other_process_is_quicker(self: Any, name: str, *given: Any, **more: Any) -> Any:
        asked.append(name)
        if len(asked) == number + 1:
            place.sink().commit(committable)
        return real(self, name, *given, **more)

    monkeypatch.setattr(owner, call, other_process_is_quicker)
    with suppress(Retriable):  # as where the upload is gone when it is to be completed
        place.sink().commit(committable)
    place.sink().commit(committable)
    assert place.values() == ["a", "b"]


def test_what_is_found_of_a_round_that_is_not_decided_is_removed_with_all_its_files(place: Place) -> None:
    pending_in_folders(place.sink())
    sink = place.sink()
    [found] = sink.recover()
    for _ in range(2):
        sink.abort(found)
    assert (list(place.sink().recover()), place.files()) == ([], [])


def test_a_file_that_is_lost_keeps_no_other_file_of_its_transaction_back(place: Place) -> None:
    committable = pending_in_folders(place.sink())
    second = decidable_files(committable)[1]
    place.store.discard(second)
    with pytest.raises(TransactionLost, match="4 records") as error:
        place.sink().commit(committable)
    assert second.target in str(error.value)
    assert sorted(place.values()) == ["0", "2", "3"]


def test_an_aborted_participant_leaves_no_file(place: Place) -> None:
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    done, open_ = transaction.create("a=1"), transaction.create("a=2")
    for file in (done, open_):
        file.write(b"x" * 100)
        assert file.tell() == 100
    done.close()
    for _ in range(2):
        sink.discard(transaction)
    assert (list(place.sink().recover()), place.files()) == ([], [])


@pytest.mark.advice("a foreign file has the target's name")
@pytest.mark.parametrize("longer_bytes", [0, 1], ids=["as long", "longer"])
def test_a_foreign_file_of_the_targets_name_is_vetoed_and_never_overwritten_and_the_own_one_waits_for_its_name(
    longer_bytes: int, place: Place
) -> None:
    committable = place.pre_commit(batch_id=7)
    file = the_file(committable)
    target, foreign = place.path(file.target), b"x" * ((file.size_bytes or 0) + longer_bytes)
    place.fs.pipe_file(target, foreign)
    with pytest.raises(Refused, match="never overwrites"):
        place.sink().seal([committable], age_s=0)
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name") as error:
        place.sink().commit(committable)
    assert type(error.value) is OperatorRequired
    for part in ("batch 7", committable.transaction_id, file.target, file.pending):
        assert part in str(error.value)
    assert place.fs.cat_file(target) == foreign
    if not place.url.startswith("abfs:"):  # a blob that is written replaces the uncommitted blocks of its name
        place.fs.rm_file(target)
        place.sink().commit(committable)
        assert place.values() == ["a", "b"]


def test_what_was_removed_after_its_decision_is_lost_and_named(place: Place) -> None:
    committable = place.pre_commit(batch_id=7)
    place.sink().abort(committable)
    with pytest.raises(Refused, match="the driver does not find the pending file"):
        place.sink().seal([committable], age_s=0)
    with pytest.raises(TransactionLost) as error:
        place.sink().commit(committable)
    file = the_file(committable)
    for part in ("batch 7", committable.transaction_id, file.target, file.pending, "2 records", "'path'"):
        assert part in str(error.value)


def test_a_target_that_was_removed_after_its_commit_is_not_taken_for_committed(place: Place) -> None:
    committable = place.pre_commit()
    place.sink().commit(committable)
    place.fs.rm_file(place.path(the_file(committable).target))
    with pytest.raises(TransactionLost):
        place.sink().commit(committable)


OF_ANOTHER = f"part-{0:020d}-00000-00000-twopc.log.orders.1.0.1.0.0.json"
ITS_OWN = f"part-{0:020d}-00000-00000-twopc.log.orders.1.0.0.0.0.json"
FOREIGN: list[dict[str, Any]] = [
    *({"target": name} for name in ("../escaped.json", "/etc/passwd", "sub/escaped.json", "..", "_twopc", ".hidden")),
    *({"target": name} for name in ("nul\0.json", "line\n.json", "", 7, None, "day=1/../escaped.json", OF_ANOTHER)),
    *({"target": f"{folder}/{ITS_OWN}"} for folder in ("..", "day=1/..", "/day=1", "day=1\n")),
    *({"staged": name} for name in ("line\nend", "", None)),
    *({"bytes": size} for size in ("7", None, -1, True)),
    {"parts": 7},
]
"""What no file sink writes of a file."""


def test_a_handle_that_no_file_sink_writes_is_refused_on_every_store(place: Place) -> None:
    committable = place.pre_commit()
    before = place.files()
    file = the_file(committable).to_json()
    for change in FOREIGN:
        with pytest.raises(CorruptLog, match="No file was touched"):
            place.sink().commit(Committable(committable.transaction_id, {"files": [file, file | change]}, 2))
    assert place.files() == before


@pytest.mark.parametrize("store", ["local", "s3", ON_AZURE, ON_GCS, "memory", ON_HDFS])
def test_logs_of_complete_batches_list_each_batch_once_though_its_completion_is_repeated(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = request.getfixturevalue(store)
    monkeypatch.setattr("twopc_files.batch_log.COMPACTION_INTERVAL", 2)
    an_hour_later = SimpleNamespace(time=lambda: time.time() + 3600)  # whatever is old enough is pruned
    monkeypatch.setattr("twopc_files.batch_log.time", an_hour_later)
    for batch_id in range(6):
        committable = place.pre_commit(f"{batch_id}", batch_id=batch_id)
        for _ in range(2):
            sink = place.sink(batch_logs="spark,manifest")
            sink.open()
            sink.commit(committable)
            sink.complete(batch_id, [committable])
    listed = committed_files(place.url, place.storage_options)
    names = [path for path in place.files() if path.startswith("part-")]
    assert [path.rpartition("/")[2] for path in listed] == names
    assert store in ("local", "memory") or listed == [f"{place.url}/{name}" for name in names]
    assert [json.loads(place.fs.cat_file(place.path(name)))["value"] for name in names] == [f"{n}" for n in range(6)]
    for folder in ("_manifest", "_spark_metadata"):
        entries = [path for path in place.files() if path.startswith(f"{folder}/")]
        assert entries == [f"{folder}/{name}" for name in ("3.compact", "4", "5.compact", "6")]
        assert place.fs.cat_file(place.path(f"{folder}/5.compact")).count(b"part-") == 5


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        pytest.param("s3://bucket/orders", {}, "s3a://bucket/orders", id="s3"),
        *(
            pytest.param(
                "az://container/orders",
                {"connection_string": f"AccountName=a;AccountKey=a2V5;BlobEndpoint=https://a.blob.{cloud}"},
                f"abfss://container@a.dfs.{cloud}/orders",
                id=cloud,
            )
            for cloud in ("core.windows.net", "core.chinacloudapi.cn")
        ),
        pytest.param("gs://bucket/orders", {"token": "anon"}, "gs://bucket/orders", id="gs"),
        pytest.param("webhdfs://host:9870/orders", {}, "webhdfs://host:9870/orders", id="webhdfs"),
    ],
)
def test_sparks_log_of_complete_batches_names_files_as_hadoop_does(
    url: str, options: dict[str, Any], named: str
) -> None:
    log: Any = spark_metadata(*store_at(url, options).located(), "owner")
    assert f'"{named}/day=a%20b/old"'.encode() in log._format.encode("owner", [CommittedFile("day=a b/old", 1)])
