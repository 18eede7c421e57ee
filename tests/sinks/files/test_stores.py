"""What every store does alike, whichever it is: files of one transaction, their names, and what is not ours."""

from contextlib import suppress
from typing import Any

import pytest

from tests.sinks.files.conftest import ON_AZURE, ON_GCS, Place
from tests.sinks.files.uploads import the_file
from twopc import Committable, Round
from twopc.errors import CorruptLog, OperatorRequired, Refused, Retriable, TransactionLost
from twopc_files.file_names import decidable_files
from twopc_files.sink import FileSink

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


def test_the_files_of_a_folder_sort_by_batch_and_then_by_number(place: Place) -> None:
    for batch_id in (10, 9):
        place.sink().commit(pending_in_folders(place.sink(), batch_id, folders=("a=1", "a=1")))
    orders = [target.split("-")[1:4:2] for target in place.targets()]
    assert [(int(batch), int(number)) for batch, number in orders] == [(9, 0), (9, 1), (10, 0), (10, 1)]


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


def test_a_target_that_is_there_is_vetoed_and_never_overwritten(place: Place) -> None:
    committable = place.pre_commit()
    target = place.path(the_file(committable).target)
    place.fs.pipe_file(target, b"somebody else's")
    with pytest.raises(Refused, match="never overwrites"):
        place.sink().seal([committable], age_s=0)
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name") as error:
        place.sink().commit(committable)
    assert type(error.value) is OperatorRequired
    assert place.fs.cat_file(target) == b"somebody else's"


@pytest.mark.advice("a foreign file has the target's name")
@pytest.mark.parametrize("store", ["local", "s3", "memory", "renaming"])
def test_a_file_is_committed_when_the_foreign_one_of_its_name_is_gone(
    store: str, request: pytest.FixtureRequest
) -> None:
    """Not on Azure, where a blob that is written replaces the uncommitted blocks of its name."""
    place: Place = request.getfixturevalue(store)
    committable = place.pre_commit()
    target = place.path(the_file(committable).target)
    place.fs.pipe_file(target, b"somebody else's")
    with pytest.raises(OperatorRequired):
        place.sink().commit(committable)
    place.fs.rm_file(target)
    place.sink().commit(committable)
    assert place.values() == ["a", "b"]


def test_a_foreign_file_of_the_same_length_is_not_taken_for_the_transactions_own(place: Place) -> None:
    committable = place.pre_commit()
    file = the_file(committable)
    assert file.size_bytes
    place.fs.pipe_file(place.path(file.target), b"x" * file.size_bytes)
    with pytest.raises(OperatorRequired, match="a foreign file has the target's name"):
        place.sink().commit(committable)
    assert place.fs.cat_file(place.path(file.target)) == b"x" * file.size_bytes


def test_what_was_removed_after_its_decision_is_lost_and_named(place: Place) -> None:
    committable = place.pre_commit(batch_id=7)
    place.sink().abort(committable)
    with pytest.raises(Refused, match="the driver does not find the pending file"):
        place.sink().seal([committable], age_s=0)
    with pytest.raises(TransactionLost) as error:
        place.sink().commit(committable)
    for part in ("batch 7", committable.transaction_id, the_file(committable).target, "2 records", "'path'"):
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


def test_a_sweep_finds_nothing_of_another_log_sink_or_program(place: Place) -> None:
    place.pre_commit(log_id="log2")
    other = place.sink("log")
    other.prefix = "twopc.log"
    other = other.unbound()
    other.bind("orders", "log")
    pending_in_folders(other)
    place.fs.makedirs(place.path("_twopc"), exist_ok=True)
    for name in ("notes.txt", ".staged", "twopc.log.orders.1.0.0.0.0-0.staged", ".twopc.log.orders.1.0.0.0-0.staged"):
        place.fs.pipe_file(place.path(f"_twopc/{name}"), b"keep")
    before = place.files()
    assert list(place.sink("log").recover()) == []
    assert place.files() == before


def test_a_participant_that_begins_after_its_round_was_swept_is_found_by_the_next_sweep(place: Place) -> None:
    late = place.sink()
    assert list(place.sink().recover()) == []
    pending_in_folders(late)
    for found in place.sink().recover():
        place.sink().abort(found)
    assert (list(place.sink().recover()), place.files()) == ([], [])
