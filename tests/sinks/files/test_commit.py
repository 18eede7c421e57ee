"""What becomes of a decided file, whatever the file system says."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sinks.files.conftest import MakeSink, PreCommit
from tests.support.raising import raising
from twopc import Committable, Round
from twopc.errors import CorruptLog, OperatorRequired, OutcomeUnknown, Refused, Retriable, TransactionLost
from twopc_files.file_names import FileHandle, decidable_files, target_name


@dataclass(frozen=True)
class Decided:
    """A transaction of batch 7 with one file, which is decided and not committed."""

    folder: Path
    sink: MakeSink
    committable: Committable

    @property
    def handle(self) -> FileHandle:
        [file] = decidable_files(self.committable)
        return file

    @property
    def pending(self) -> Path:
        return self.folder / "_twopc" / self.handle.pending

    @property
    def target(self) -> Path:
        return self.folder / self.handle.target

    def commit(self) -> None:
        """Commit it by a process of its own, as far as it knows."""
        self.sink().commit(self.committable)

    def rows(self) -> int:
        return int(pq.read_table(self.target).num_rows)


@pytest.fixture
def decided(folder: Path, make_sink: MakeSink, pre_commit: PreCommit) -> Decided:
    return Decided(folder, make_sink, pre_commit(batch_id=7))


@pytest.fixture
def syscalls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs and renames of this process, in order: a sync by the path of what was synced."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor: int) -> None:
        calls.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")  # noqa: PTH115
        fsync(descriptor)

    def record_rename(source: str, target: str, **keywords: Any) -> None:
        calls.append(f"rename {source} {target}")
        rename(source, target, **keywords)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    return calls


def test_pre_commit_syncs_the_file_and_then_its_folder_before_it_votes_yes(
    syscalls: list[str], decided: Decided
) -> None:
    assert syscalls[-3:] == [f"sync {path}" for path in (decided.pending, decided.folder / "_twopc", decided.folder)]


def test_pre_commit_syncs_the_file_when_all_of_it_is_written(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sizes: list[int] = []
    fsync = os.fsync

    def record_size(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_size)
    decided: Decided = request.getfixturevalue("decided")
    assert decided.handle.size_bytes in sizes
    assert decided.handle.size_bytes == decided.pending.stat().st_size


def test_commit_renames_and_then_syncs_both_folders_also_where_the_rename_is_that_of_a_killed_process(
    decided: Decided, syscalls: list[str]
) -> None:
    for renames in ([f"rename {decided.pending} {decided.target}"], []):
        syscalls.clear()
        decided.commit()
        assert syscalls == [*renames, f"sync {decided.folder}", f"sync {decided.folder / '_twopc'}"]


def test_committed_files_sort_by_batch_then_by_partition_and_then_by_number(make_sink: MakeSink) -> None:
    pool = make_sink().transactional_ids
    orders = [(batch, partition, number) for batch in (2, 9, 10) for partition in (2, 11) for number in (2, 10)]
    ids = [pool.allocate(Round(30 - batch, batch), partition) for batch, partition, _ in orders]
    names = [target_name(each, number, "day=1", ".json") for each, (_, _, number) in zip(ids, orders, strict=True)]
    assert sorted(names) == names


def test_a_commit_syncs_every_folder_down_to_the_file_whoever_made_them(
    folder: Path, make_sink: MakeSink, syscalls: list[str]
) -> None:
    sink = make_sink(format="json")
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.create("a=1/b=2").close()
    committable = sink.pre_commit(transaction)
    (folder / "a=1" / "b=2").mkdir(parents=True)  # by one that died before it could sync
    syscalls.clear()
    sink.commit(committable)
    synced = [call for call in syscalls if call.startswith("sync")]
    assert synced[-4:] == [f"sync {folder / below}" for below in ("a=1/b=2", "a=1", ".", "_twopc")]


def test_a_repeated_commit_succeeds_when_the_empty_staging_folder_was_removed(decided: Decided) -> None:
    decided.commit()
    (decided.folder / "_twopc").rmdir()
    decided.commit()
    assert decided.rows() == 2


def test_a_dangling_link_with_the_targets_name_is_never_overwritten(decided: Decided) -> None:
    decided.target.symlink_to("nowhere")
    with pytest.raises(OperatorRequired):
        decided.commit()
    assert decided.target.is_symlink()


@pytest.mark.advice("and neither file exists")
def test_a_lost_file_is_committed_when_it_is_put_back(decided: Decided) -> None:
    copy = decided.pending.rename(decided.folder / "copy")
    with pytest.raises(TransactionLost, match="and neither file exists"):
        decided.commit()
    copy.rename(decided.pending)
    decided.commit()
    assert decided.rows() == 2


@pytest.mark.advice("and the store does not report whether it is committed")
@pytest.mark.parametrize("has_mount_point", [False, True])
def test_a_folder_that_is_not_mounted_is_in_doubt_and_not_lost(has_mount_point: bool, decided: Decided) -> None:
    folder = decided.folder
    disk = folder.rename(folder.with_name("unmounted"))
    if has_mount_point:
        folder.mkdir()
    with pytest.raises(
        OutcomeUnknown, match=r"does not report whether it is committed: .*mounted.* start the query again"
    ):
        decided.commit()
    if has_mount_point:
        folder.rmdir()  # it is empty
    disk.rename(folder)
    decided.commit()
    assert decided.rows() == 2


@pytest.mark.advice("another program changed it, or the store lost a part")
@pytest.mark.parametrize("place", ["pending", "target"])
def test_a_file_of_another_length_is_in_doubt_until_it_is_restored(place: str, decided: Decided) -> None:
    file, whole = getattr(decided, place), decided.pending.read_bytes()
    decided.pending.unlink()
    file.write_bytes(whole[:-1])
    with pytest.raises(OutcomeUnknown, match=f"{len(whole)} bytes.* Restore the file from a copy and start the query"):
        decided.commit()
    assert file.read_bytes() == whole[:-1]
    file.write_bytes(whole)
    decided.commit()
    assert decided.rows() == 2


def test_two_processes_that_commit_one_transaction_at_once_both_succeed(
    decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending, target, lstat = decided.pending, decided.target, Path.lstat

    def other_process_is_quicker(path: Path) -> os.stat_result:
        status = lstat(path)
        if path == pending:
            os.rename(pending, target)  # noqa: PTH104
        return status

    monkeypatch.setattr(Path, "lstat", other_process_is_quicker)
    decided.commit()
    assert decided.rows() == 2


def test_a_rename_that_finds_the_file_gone_is_repeated_and_finds_it_committed(
    decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def other_process_is_quicker(source: str, target: str) -> None:
        rename(source, target)
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", other_process_is_quicker)
        with pytest.raises(Retriable):
            decided.commit()
    decided.commit()
    assert decided.rows() == 2


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("lstat", errno.ESTALE, Retriable),
        ("lstat", errno.EACCES, OperatorRequired),
        ("lstat", errno.EIO, OutcomeUnknown),
        ("rename", errno.EBUSY, Retriable),
        ("rename", errno.ESTALE, Retriable),
        ("rename", errno.ENOSPC, Retriable),
        ("rename", errno.EACCES, OperatorRequired),
        ("rename", errno.EROFS, OperatorRequired),
        ("rename", errno.EXDEV, OperatorRequired),
        ("rename", errno.EIO, OutcomeUnknown),
        ("fsync", errno.EIO, OutcomeUnknown),
        ("fsync", errno.ENOSPC, OutcomeUnknown),
        ("fsync", errno.EBUSY, OutcomeUnknown),
        ("fsync", errno.EINTR, Retriable),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else getattr(value, "__name__", value),
)
def test_an_error_of_the_file_system_is_never_a_success_and_a_later_commit_completes(
    call: str, number: int, expected: type[Exception], decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path if call == "lstat" else os, call, raising(OSError(number, os.strerror(number))))
        with pytest.raises(expected) as error:
            decided.commit()
    assert type(error.value) is expected
    assert "batch 7" in str(error.value)
    assert os.strerror(number) in str(error.value)
    decided.commit()
    assert decided.rows() == 2


def test_a_pending_file_that_is_cut_off_is_vetoed(decided: Decided) -> None:
    os.truncate(decided.pending, 3)
    with pytest.raises(Refused, match="has 3 bytes"):
        decided.sink().seal([decided.committable], age_s=0)


def test_a_name_that_is_too_long_for_the_disk_is_vetoed(make_sink: MakeSink) -> None:
    sink = make_sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.create(f"city={'x' * 255}").close()
    with pytest.raises(Refused, match="File name too long"):
        sink.seal([sink.pre_commit(transaction)], age_s=0)


def test_a_handle_that_leads_to_no_pending_file_of_its_transaction_is_refused_and_touches_no_file(
    decided: Decided, pre_commit: PreCommit
) -> None:
    pre_commit(partition=1)
    (decided.folder.parent / "secret").write_text("keep")
    before = sorted(decided.folder.parent.rglob("*"))
    names = ("../../secret", "/etc/passwd", ".twopc.log.orders.1.0.1.0.0-0.staged", None)
    named: list[Any] = [[{**decided.handle.to_json(), "staged": staged}] for staged in names]
    for files in (*named, None, [], "x", [7], {}):
        hostile = Committable(decided.committable.transaction_id, {"files": files}, 2)
        for refuse in (decided.sink().commit, decided.sink().abort):
            with pytest.raises(CorruptLog, match="No file was touched"):
                refuse(hostile)
        assert sorted(decided.folder.parent.rglob("*")) == before


def test_a_transaction_id_with_a_path_in_it_is_refused(decided: Decided) -> None:
    victim = decided.folder / "_twopc" / ".x" / "victim-0.staged"
    victim.parent.mkdir()
    victim.touch()
    files: list[Any] = [{**decided.handle.to_json(), "staged": ".x/victim-0.staged"}]
    with pytest.raises(CorruptLog):
        decided.sink().abort(Committable("x/victim", {"files": files}, 1))
    assert victim.exists()
