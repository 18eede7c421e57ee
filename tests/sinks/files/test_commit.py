"""What becomes of a decided file, whatever the file system says."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sinks.files.conftest import MakeSink, PreCommit
from tests.support.raising import raising
from twopc import Committable, Round
from twopc.errors import CorruptLog, OperatorRequired, OutcomeUnknown, Refused, Retriable, TransactionLost
from twopc_files.file_names import target_name


def the_file(committable: Committable) -> dict[str, Any]:
    """What its handle says of its one file."""
    files: Any = committable.handle["files"]
    [file] = files
    return dict(file)


def pending_path(folder: Path, committable: Committable) -> Path:
    return folder / "_twopc" / str(the_file(committable)["staged"])


def target_path(folder: Path, committable: Committable) -> Path:
    return folder / str(the_file(committable)["target"])


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
    folder: Path, pre_commit: PreCommit, syscalls: list[str]
) -> None:
    committable = pre_commit()
    file, staging, parent = pending_path(folder, committable), folder / "_twopc", folder
    assert syscalls[-3:] == [f"sync {file}", f"sync {staging}", f"sync {parent}"]


def test_pre_commit_syncs_the_file_when_all_of_it_is_written(
    folder: Path, pre_commit: PreCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    fsync = os.fsync

    def record_size(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_size)
    committable = pre_commit()
    assert the_file(committable)["bytes"] in sizes
    assert the_file(committable)["bytes"] == pending_path(folder, committable).stat().st_size


def test_commit_renames_and_then_syncs_both_folders_also_where_the_rename_is_that_of_a_killed_process(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink, syscalls: list[str]
) -> None:
    committable = pre_commit()
    rename = f"rename {pending_path(folder, committable)} {target_path(folder, committable)}"
    for renames in ([rename], []):
        syscalls.clear()
        make_sink().commit(committable)
        assert syscalls == [*renames, f"sync {folder}", f"sync {folder / '_twopc'}"]


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


def test_a_repeated_commit_succeeds_when_the_empty_staging_folder_was_removed(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink
) -> None:
    committable = pre_commit()
    make_sink().commit(committable)
    (folder / "_twopc").rmdir()
    make_sink().commit(committable)
    assert target_path(folder, committable).is_file()


def test_a_dangling_link_with_the_targets_name_is_never_overwritten(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink
) -> None:
    committable = pre_commit()
    target_path(folder, committable).symlink_to("nowhere")
    with pytest.raises(OperatorRequired):
        make_sink().commit(committable)
    assert target_path(folder, committable).is_symlink()


@pytest.mark.advice("and neither file exists")
def test_a_lost_file_is_committed_when_it_is_put_back(folder: Path, pre_commit: PreCommit, make_sink: MakeSink) -> None:
    committable = pre_commit()
    copy = pending_path(folder, committable).rename(folder / "copy")
    with pytest.raises(TransactionLost, match="and neither file exists"):
        make_sink().commit(committable)
    copy.rename(pending_path(folder, committable))
    make_sink().commit(committable)
    assert target_path(folder, committable).exists()


@pytest.mark.advice("and the store does not report whether it is committed")
@pytest.mark.parametrize("has_mount_point", [False, True])
def test_a_folder_that_is_not_mounted_is_in_doubt_and_not_lost(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink, has_mount_point: bool
) -> None:
    committable = pre_commit()
    folder.rename(folder.with_name("unmounted"))
    if has_mount_point:
        folder.mkdir()
    with pytest.raises(
        OutcomeUnknown, match=r"does not report whether it is committed: .*mounted.* start the query again"
    ):
        make_sink().commit(committable)
    if has_mount_point:
        folder.rmdir()  # it is empty
    folder.with_name("unmounted").rename(folder)
    make_sink().commit(committable)
    assert target_path(folder, committable).exists()


@pytest.mark.advice("another program changed it, or the store lost a part")
@pytest.mark.parametrize("place", [pending_path, target_path], ids=["staged", "target"])
def test_a_file_of_another_length_is_in_doubt_until_it_is_restored(
    place: Any, folder: Path, pre_commit: PreCommit, make_sink: MakeSink
) -> None:
    committable = pre_commit()
    whole = pending_path(folder, committable).read_bytes()
    pending_path(folder, committable).unlink()
    place(folder, committable).write_bytes(whole[:-1])
    with pytest.raises(OutcomeUnknown, match=f"{len(whole)} bytes.* Restore the file from a copy and start the query"):
        make_sink().commit(committable)
    assert place(folder, committable).read_bytes() == whole[:-1]
    place(folder, committable).write_bytes(whole)
    make_sink().commit(committable)
    assert pq.read_table(target_path(folder, committable)).num_rows == 2


def test_two_processes_that_commit_one_transaction_at_once_both_succeed(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit()
    staged, target = pending_path(folder, committable), target_path(folder, committable)
    lstat = Path.lstat

    def other_process_is_quicker(path: Path) -> os.stat_result:
        status = lstat(path)
        if path == staged:
            os.rename(staged, target)  # noqa: PTH104
        return status

    monkeypatch.setattr(Path, "lstat", other_process_is_quicker)
    make_sink().commit(committable)
    assert pq.read_table(target).num_rows == 2


def test_a_rename_that_finds_the_file_gone_is_repeated_and_finds_it_committed(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit()
    rename = os.rename

    def other_process_is_quicker(source: str, target: str) -> None:
        rename(source, target)
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", other_process_is_quicker)
        with pytest.raises(Retriable):
            make_sink().commit(committable)
    make_sink().commit(committable)
    assert pq.read_table(target_path(folder, committable)).num_rows == 2


def failing(number: int) -> Any:
    return raising(OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
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
    call: str,
    number: int,
    expected: type[Exception],
    folder: Path,
    pre_commit: PreCommit,
    make_sink: MakeSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committable = pre_commit(batch_id=7)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(number))
        with pytest.raises(expected) as error:
            make_sink().commit(committable)
    assert type(error.value) is expected
    assert "batch 7" in str(error.value)
    assert os.strerror(number) in str(error.value)
    make_sink().commit(committable)
    assert pq.read_table(target_path(folder, committable)).num_rows == 2


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cant_be_looked_at_is_not_taken_for_gone(
    number: int, pre_commit: PreCommit, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit()
    monkeypatch.setattr(Path, "lstat", failing(number))
    with pytest.raises((Retriable, OperatorRequired)) as error:
        make_sink().commit(committable)
    assert not isinstance(error.value, TransactionLost)


def test_a_pending_file_that_is_cut_off_is_vetoed(folder: Path, pre_commit: PreCommit, make_sink: MakeSink) -> None:
    committable = pre_commit()
    os.truncate(pending_path(folder, committable), 3)
    with pytest.raises(Refused, match="has 3 bytes"):
        make_sink().seal([committable], age_s=0)


def test_a_name_that_is_too_long_for_the_disk_is_vetoed(make_sink: MakeSink) -> None:
    sink = make_sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.create(f"city={'x' * 255}").close()
    with pytest.raises(Refused, match="File name too long"):
        sink.seal([sink.pre_commit(transaction)], age_s=0)


def test_a_handle_that_leads_to_no_pending_file_of_its_transaction_is_refused_and_touches_no_file(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink
) -> None:
    committable = pre_commit()
    pre_commit(partition=1)
    (folder.parent / "secret").write_text("keep")
    before = sorted(folder.parent.rglob("*"))
    for staged in ("../../secret", "/etc/passwd", ".twopc.log.orders.1.0.1.0.0-0.staged", None):
        hostile = Committable(committable.transaction_id, {"files": [{**the_file(committable), "staged": staged}]}, 2)
        for refuse in (make_sink().commit, make_sink().abort):
            with pytest.raises(CorruptLog, match="No file was touched"):
                refuse(hostile)
        assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize("files", [None, [], "x", [7], {}], ids=repr)
def test_a_handle_without_files_is_refused(files: Any, pre_commit: PreCommit, make_sink: MakeSink) -> None:
    committable = Committable(pre_commit().transaction_id, {"files": files}, 2)
    for refuse in (make_sink().commit, make_sink().abort):
        with pytest.raises(CorruptLog):
            refuse(committable)


def test_a_transaction_id_with_a_path_in_it_is_refused(
    folder: Path, pre_commit: PreCommit, make_sink: MakeSink
) -> None:
    committable = pre_commit()
    victim = folder / "_twopc" / ".x" / "victim-0.staged"
    victim.parent.mkdir()
    victim.touch()
    hostile = Committable("x/victim", {"files": [{**the_file(committable), "staged": ".x/victim-0.staged"}]}, 1)
    with pytest.raises(CorruptLog):
        make_sink().abort(hostile)
    assert victim.exists()
