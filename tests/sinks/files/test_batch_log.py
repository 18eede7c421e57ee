"""The log of complete batches: what it lists, through crashes and zombies at every step, and whom it refuses."""

import contextlib
import errno
import io
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import LocalFileSystem as LocalArrowFileSystem

from tests.sinks.files.conftest import Place
from tests.support.observing import Killed
from twopc.errors import ConfigurationError, CorruptLog, OperatorRequired, Retriable
from twopc.stores.remote import ObjectFolder
from twopc_files import committed_files
from twopc_files.batch_log import BatchLog, CommittedFile
from twopc_files.manifest import manifest
from twopc_files.sink import FileSink
from twopc_files.spark_metadata import spark_metadata

CALLS = ("ls", "cat_file", "pipe_file", "rm_file", "modified", "find")


class Steps:
    """Called before each call of the store. What it does there is the test's business."""

    def __init__(self) -> None:
        self.taken = 0
        self.before: Callable[[int], None] = lambda _: None

    def take(self) -> None:
        self.taken += 1
        self.before(self.taken)


def stepwise(kind: Any) -> Any:
    """A file system of ``kind`` that takes a step before each call, in its attribute ``steps``."""

    def call(name: str) -> Any:
        def stepped(self: Any, *arguments: Any, **keywords: Any) -> Any:
            self.steps.take()
            return getattr(kind, name)(self, *arguments, **keywords)

        return stepped

    fs = type(f"Stepwise{kind.__name__}", (kind,), {name: call(name) for name in CALLS})(skip_instance_cache=True)
    fs.steps = Steps()
    return fs


class Store:
    """A folder of files on some store, and processes that keep a log of it."""

    def __init__(self, kind: Callable[[], Any], folder: str, make: Callable[..., BatchLog]) -> None:
        self.kind, self.folder, self.make = kind, folder, make
        self.fs = kind()

    def log(self, owner: str = "twopc.log.orders.", fs: Any = None, kept_for_s: float = 0) -> BatchLog:
        return self.make(fs or self.fs, self.folder, owner, kept_for_s)

    def begun(self, **given: Any) -> BatchLog:
        """Open the log, and create it if it is missing, as before the first commit of an incarnation."""
        log = self.log(**given)
        log.open()
        log.begin()
        return log

    def commit(self, *names: str) -> list[CommittedFile]:
        """Files that readers of the folder see."""
        self.fs.makedirs(self.folder, exist_ok=True)
        for name in names:
            self.fs.pipe_file(f"{self.folder}/{name}", b"123")
        return [CommittedFile(name, 3, 1) for name in names]

    def batch(self, batch_id: int) -> list[CommittedFile]:
        return self.commit(f"part-{batch_id}-a", f"part-{batch_id}-b")

    def listed(self) -> list[str]:
        return [file.path for file in self.log().files()]

    def entries(self) -> dict[str, bytes]:
        path = self.log().path
        names = self.fs.ls(path, detail=False) if self.fs.exists(path) else []
        return {name.rsplit("/", 1)[-1]: self.fs.cat_file(name) for name in names if "/." not in name}

    def restore(self, entries: dict[str, bytes]) -> None:
        path = self.log().path
        if self.fs.exists(path):
            self.fs.rm(path, recursive=True)
        if entries:
            self.fs.makedirs(path, exist_ok=True)
        for name, data in entries.items():
            self.fs.pipe_file(f"{path}/{name}", data)

    def complete(self, *batch_ids: int) -> None:
        log = self.begun()
        for batch_id in batch_ids:
            log.complete(batch_id, self.batch(batch_id))


def names(*batch_ids: int) -> list[str]:
    return [f"part-{batch_id}-{letter}" for batch_id in batch_ids for letter in "ab"]


@pytest.fixture(params=[spark_metadata, manifest], ids=["spark", "manifest"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def store(make: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    # Processes that overtake each other in the middle of a put are one thread here, which the lock would stop.
    monkeypatch.setattr(ObjectFolder, "_one_at_a_time", contextlib.nullcontext())
    folder = f"/{uuid.uuid4().hex}/orders"
    store = Store(MemoryFileSystem, folder, make)
    yield store
    store.fs.rm(folder, recursive=True)


@pytest.fixture
def disk(make: Any, tmp_path: Path) -> Store:
    return Store(LocalFileSystem, str(tmp_path / "orders"), make)


def test_a_batch_is_listed_when_it_is_complete_and_all_at_once(store: Store) -> None:
    log = store.begun()
    assert store.listed() == []
    files = store.batch(0)
    assert store.listed() == []
    log.complete(0, files)
    assert store.listed() == names(0)
    store.batch(1)
    assert store.listed() == names(0)


def test_an_empty_batch_has_an_entry_too(store: Store) -> None:
    log = store.begun()
    log.complete(0, [])
    log.complete(1, store.batch(1))
    assert store.listed() == names(1)
    assert list(store.entries()) == ["0", "1", "2"]


def test_every_tenth_entry_lists_everything_and_older_ones_are_removed(store: Store) -> None:
    store.complete(*range(45))
    assert store.listed() == names(*range(45))
    assert sorted(store.entries()) == sorted(
        ["29.compact", *map(str, range(30, 39)), "39.compact", *map(str, range(40, 46))]
    )


def test_entries_stay_for_a_while_because_a_reader_may_be_at_them(store: Store) -> None:
    log = store.begun(kept_for_s=600)
    for batch_id in range(45):
        log.complete(batch_id, store.batch(batch_id))
    assert len(store.entries()) == 46


def test_neither_the_entries_nor_the_calls_a_batch_grow_with_the_number_of_batches(store: Store) -> None:
    fs = stepwise(store.kind)
    log = store.begun(fs=fs)
    calls, entries = [], []
    for batch_id in range(240):
        before = fs.steps.taken
        log.complete(batch_id, store.batch(batch_id))
        calls.append(fs.steps.taken - before)
        entries.append(len(store.entries()))
    assert calls[40:60] == calls[200:220]
    assert max(calls[1:8]) == 2
    assert max(entries) == 20


def test_sizes_and_times_survive_compaction(store: Store) -> None:
    store.complete(0)
    [before, _] = store.log().files()
    assert before.size_bytes == 3
    assert before.listed_ms > 1_600_000_000_000
    store.complete(*range(1, 12))
    assert store.log().files()[0] == before


def test_the_manifest_names_the_records(tmp_path: Path) -> None:
    store = Store(LocalFileSystem, str(tmp_path), manifest)
    store.complete(*range(12))
    assert {file.records for file in store.log().files()} == {1}


def test_a_log_begins_with_all_files_that_the_folder_has_and_readers_see(store: Store) -> None:
    store.commit("old", "day=1/old", "_day=1/old", "_twopc/.x.staged", "_SUCCESS", ".hidden", "day=1/.hidden")
    store.log().begin()
    assert sorted(store.listed()) == ["_day=1/old", "day=1/old", "old"]


@pytest.mark.parametrize("first", [1, 7, 8, 9, 10, 18, 19, 57, 1000])
def test_the_first_batch_of_a_log_may_have_any_number(first: int, store: Store) -> None:
    store.commit("old")
    store.complete(*range(first, first + 30))
    assert store.listed() == ["old", *names(*range(first, first + 30))]


@pytest.mark.parametrize("missed", [range(3, 4), range(3, 9), range(3, 40), range(8, 9), range(9, 10)])
def test_batches_that_were_committed_without_the_log_are_listed_with_the_next_one(missed: range, store: Store) -> None:
    store.complete(*range(missed.start))
    for batch_id in missed:
        store.batch(batch_id)
    store.complete(*range(missed.stop, missed.stop + 15))
    assert sorted(store.listed()) == sorted(names(*range(missed.stop + 15)))
    slots = sorted(int(name.removesuffix(".compact")) for name in store.entries())
    base = max(slot for slot in slots if (slot + 1) % 10 == 0)
    assert slots[slots.index(base) :] == list(range(base, missed.stop + 16))


def test_files_of_the_interrupted_batch_that_the_folder_had_already_are_listed_once(store: Store) -> None:
    store.commit("part-5-a")
    store.complete(5)
    assert sorted(store.listed()) == names(5)


def test_a_repeated_call_changes_nothing(store: Store) -> None:
    store.complete(*range(25))
    before = store.entries()
    store.complete(3, 18, 19, 24)
    assert store.entries() == before


def kill_at(step: int) -> Callable[[int], None]:
    def before(taken: int) -> None:
        if taken >= step:
            raise Killed

    return before


def without_times(entries: dict[str, bytes], log: BatchLog) -> dict[str, Any]:
    return {name: [file.path for file in log._format.decode(data)[1]] for name, data in entries.items()}


CASES = pytest.mark.parametrize(
    ("through", "batch_id"),
    [(None, 0), (0, 1), (7, 8), (8, 9), (27, 28), (None, 7), (None, 25), (3, 9), (3, 25)],
    ids=str,
)


def prepare(store: Store, through: int | None, batch_id: int) -> list[CommittedFile]:
    """A log through the batch ``through``, files that it misses, and ``batch_id``, which is committed."""
    store.commit("old")
    if through is not None:
        store.complete(*range(through + 1))
    for missed in range(0 if through is None else through + 1, batch_id):
        store.batch(missed)
    return store.batch(batch_id)


@pytest.mark.variants
@CASES
def test_a_crash_between_any_two_steps_and_a_repeat_are_as_no_crash(
    through: int | None, batch_id: int, store: Store
) -> None:
    files = prepare(store, through, batch_id)
    start = store.entries()
    store.begun().complete(batch_id, files)
    expected = without_times(store.entries(), store.log())
    for step in itertools.count(1):
        store.restore(start)
        fs = stepwise(store.kind)
        fs.steps.before = kill_at(step)
        try:
            store.begun(fs=fs).complete(batch_id, files)
        except Killed:
            seen = store.listed() if store.entries() else ["old"]
            assert "old" in seen
            assert len({path in seen for path in names(batch_id)}) == 1 or through is None, f"half a batch after {step}"
            store.begun().complete(batch_id, files)
        else:
            break
        after = without_times(store.entries(), store.log())
        unpruned = {name: paths for name, paths in after.items() if name in expected}
        assert unpruned == expected, f"killed before step {step}"
    assert step > 5


@pytest.mark.variants
@CASES
@pytest.mark.parametrize("ahead", [1, 25])
def test_a_zombie_that_wakes_in_mid_call_changes_nothing_that_a_reader_needs(
    through: int | None, batch_id: int, ahead: int, store: Store
) -> None:
    files = prepare(store, through, batch_id)
    start = store.entries()
    for step in itertools.count(1):
        store.restore(start)
        later = [name for number in range(batch_id + 1, batch_id + ahead + 2) for name in names(number)]
        for name in later:
            if store.fs.exists(f"{store.folder}/{name}"):
                store.fs.rm_file(f"{store.folder}/{name}")
        needed: dict[str, bytes] = {}

        def newer(taken: int, step: int = step, needed: dict[str, bytes] = needed) -> None:
            """A newer process completes the batch and those after it, and is in the middle of one more."""
            if taken == step:
                store.complete(*range(batch_id, batch_id + ahead))
                store.commit(f"part-{batch_id + ahead}-a")
                needed.update(store.entries())

        zombie = stepwise(store.kind)
        zombie.steps.before = newer
        store.begun(fs=zombie).complete(batch_id, files)
        if not needed:
            break
        assert sorted(store.listed()) == sorted(["old", *names(*range(batch_id + ahead))]), f"woke before step {step}"
        newest = max(int(name.removesuffix(".compact")) for name in needed)
        base = (newest + 1) // 10 * 10 - 1
        after = store.entries()
        assert {name: after.get(name) for name in needed if int(name.removesuffix(".compact")) >= base} == {
            name: data for name, data in needed.items() if int(name.removesuffix(".compact")) >= base
        }
    assert step > 5


def test_a_reader_that_is_overtaken_by_a_pruner_reads_the_newer_entries(store: Store) -> None:
    store.complete(*range(15))
    for step in range(2, 8):
        fs = stepwise(store.kind)

        def overtake(taken: int, step: int = step) -> None:
            if taken == step:
                store.complete(*range(15 + (step - 2) * 30, 15 + (step - 1) * 30))

        fs.steps.before = overtake
        listed = [file.path for file in store.log(fs=fs).files()]
        assert listed in (names(*range(15 + (step - 2) * 30)), names(*range(15 + (step - 1) * 30)))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EBUSY, "SlowDown"), Retriable),
        (OSError(errno.EIO, "of no table"), OperatorRequired),
        (OSError(errno.ENOSPC, "No space left"), Retriable),
        (ConnectionError("reset"), Retriable),
        (TimeoutError("no answer"), Retriable),
        (PermissionError("AccessDenied"), OperatorRequired),
        (OSError(errno.EROFS, "Read-only"), OperatorRequired),
    ],
    ids=repr,
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_the_store_is_told_and_the_repeat_completes_the_batch(
    error: OSError, expected: type[Exception], when: str, store: Store
) -> None:
    store.complete(*range(8))
    fs = stepwise(store.kind)
    put = fs.pipe_file

    def fail(*arguments: Any, **keywords: Any) -> None:
        if when == "after":
            put(*arguments, **keywords)
        raise error

    log, files = store.begun(fs=fs), store.batch(8)
    fs.pipe_file = fail
    with pytest.raises(expected, match="batch 8 is committed, and can't be listed") as told:
        log.complete(8, files)
    assert type(told.value) is expected
    fs.pipe_file = put
    log.complete(8, files)
    assert store.listed() == names(*range(9))


def test_the_log_of_another_query_is_refused_before_anything_is_written(store: Store) -> None:
    store.complete(0)
    before = store.entries()
    with pytest.raises(ConfigurationError, match=r"'twopc\.log\.orders\.', another query or a lost commit log"):
        store.log(owner="twopc.other.orders.").open()
    assert store.entries() == before


def test_a_log_of_another_program_is_refused(store: Store) -> None:
    for entries in ({"0": b"v1"}, {"4.compact": b"v1"}):
        store.restore(entries)
        with pytest.raises((ConfigurationError, CorruptLog), match=r"another program|not an entry|lacks an entry"):
            store.log().open()
        assert store.entries() == entries


def test_files_that_a_later_log_lacks_are_never_taken_for_listed(store: Store) -> None:
    store.complete(*range(12))
    log = store.log()
    with pytest.raises(OperatorRequired, match=r"batch 3 is committed.*lacks 1 of its files, such as part-3-other"):
        log.complete(3, store.commit("part-3-a", "part-3-other"))


@pytest.mark.advice("should list it, is gone")
def test_a_log_that_is_removed_is_begun_again_with_what_is_there(store: Store) -> None:
    store.complete(*range(12))
    log = store.log()
    store.restore({})
    with pytest.raises(OperatorRequired, match=r"batch 12 is committed.*is gone. Start the query again"):
        log.complete(12, store.batch(12))
    store.complete(12, 13)
    assert sorted(store.listed()) == sorted(names(*range(14)))


@pytest.mark.parametrize("data", [b"", b"v1\n{", b"v2", b"[]", b'{"version": 2, "owner": ""}', b"\xff"])
def test_an_entry_that_is_none_is_named(data: bytes, store: Store) -> None:
    store.complete(0, 1)
    store.restore({**store.entries(), "1": data})
    with pytest.raises(CorruptLog, match="/1 is not an entry of a log of complete batches"):
        store.log().files()


@pytest.mark.parametrize(
    "damage",
    [lambda entry: entry.rpartition(b"\n")[0], lambda entry: entry[:-9], lambda entry: entry.replace(b"-a", b"-b")],
    ids=["lacks a line", "truncated", "garbled"],
)
def test_a_damaged_entry_is_named_although_its_lines_are_whole(damage: Callable[[bytes], bytes], store: Store) -> None:
    store.complete(0, 1)
    store.restore({**store.entries(), "1": damage(store.entries()["1"])})
    with pytest.raises(CorruptLog, match="/1 is not an entry of a log of complete batches"):
        store.log().files()


def test_a_missing_entry_is_named(store: Store) -> None:
    store.complete(*range(5))
    store.restore({name: data for name, data in store.entries().items() if name != "3"})
    with pytest.raises(CorruptLog, match=r"lacks an entry: .*3"):
        store.log().files()


def test_a_store_without_put_if_absent_is_refused(make: Any, tmp_path: Path) -> None:
    wrapped = ArrowFSWrapper(LocalArrowFileSystem())  # as fsspec does HDFS
    with pytest.raises(ConfigurationError, match="not known to create a file only where there is none"):
        make(wrapped, str(tmp_path), "twopc.log.orders.").open()
    assert list(tmp_path.iterdir()) == []


class Overwriting(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store that accepts the condition and overwrites all the same, as some of S3's look-alikes do."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **options)


def test_a_store_that_ignores_the_condition_is_refused_before_the_first_entry(store: Store) -> None:
    present = store.commit("old")
    with pytest.raises(ConfigurationError, match=r"can't be kept at .*overwrites .*No entry was written"):
        store.log(fs=Overwriting(skip_instance_cache=True)).open()
    assert store.fs.find(store.folder) == [f"{store.folder}/{file.path}" for file in present]


def test_a_store_that_ignores_the_condition_is_refused_where_a_log_is_already(store: Store) -> None:
    store.complete(0)
    before = store.entries()
    # A decided batch may wait to be completed there, so this is no refusal of something that was not begun.
    with pytest.raises(OperatorRequired, match="overwrites"):
        store.log(fs=Overwriting(skip_instance_cache=True)).open()
    assert store.entries() == before


def test_a_store_is_tried_once_for_an_incarnation(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    monkeypatch.setattr("twopc.stores.folder.Folder._fault_of_a_trial", lambda _, __, probe: tried.append(probe))
    store.complete(*range(3))
    assert len(tried) == 1


def test_a_start_removes_what_killed_processes_left_an_hour_ago(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.complete(0)
    left = f"{store.log().path}/.0.probe"
    store.fs.pipe_file(left, b"")
    store.log().open()
    assert store.fs.exists(left)  # its process may only be slow
    monkeypatch.setattr("twopc.stores.folder.ASIDE_LIVES_S", -1)
    store.log().open()
    assert not store.fs.exists(left)


def test_a_repeated_call_syncs_the_folder_because_the_first_may_have_died_before_it_could(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.complete(0)
    log, synced, fsync = disk.log(), [], os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    log.complete(0, disk.batch(0))
    assert synced == [log.path]


def test_an_entry_whose_name_could_not_be_synced_stops_the_query_although_the_next_sync_succeeds(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.complete(0)
    log, fsync, failures = disk.begun(), os.fsync, [OSError(errno.EIO, "Input/output error")]

    def fail_once(descriptor: int) -> None:
        if failures and os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise failures.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OperatorRequired, match="Input/output error"):
        log.complete(1, disk.batch(1))
    for _ in range(2):  # a kernel reports a failed write-back once
        with pytest.raises(OperatorRequired, match=r"name was not synced.*start the query again"):
            log.complete(1, disk.batch(1))
    disk.begun().complete(1, disk.batch(1))
    assert disk.listed() == names(0, 1)


@pytest.mark.long
def test_on_s3_readers_open_what_the_manifest_lists(s3: Place) -> None:
    fs, content = s3.fs, io.BytesIO()
    pq.write_table(pa.table({"value": [1]}), content)
    for day in ("1", "2"):
        fs.pipe_file(s3.path(f"day={day}/part.parquet"), content.getvalue())
    manifest(*s3.store.located(), "twopc.log.orders.").begin()
    fs.pipe_file(s3.path("day=3/part.parquet"), content.getvalue())
    files = committed_files(s3.url, s3.storage_options)
    assert files == [f"{s3.url}/day={day}/part.parquet" for day in (1, 2)]
    expected = [{"value": 1, "day": 1}, {"value": 1, "day": 2}]
    assert ds.dataset(files, filesystem=fs, partitioning="hive").to_table().to_pylist() == expected
    assert pd.read_parquet(files, filesystem=fs).astype(int).to_dict("records") == expected
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    rows = connection.execute("SELECT value, day FROM read_parquet(?, hive_partitioning = true)", [files])
    assert rows.fetchall() == [(1, 1), (1, 2)]


def test_who_only_looks_at_a_sink_creates_no_log_and_the_first_batch_tries_no_store_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink({"path": str(tmp_path), "batch_logs": "spark,manifest"})
    sink.bind("orders", "log")
    sink.open()
    assert list(sink.recover()) == []
    assert list(tmp_path.iterdir()) == []
    tried: list[object] = []
    monkeypatch.setattr(BatchLog, "require_put_if_absent", tried.append)
    sink.complete(0, [])  # a batch without transactions, decided by an earlier incarnation
    assert {path.name for path in tmp_path.iterdir()} == {"_spark_metadata", "_manifest"}
    assert tried == []
