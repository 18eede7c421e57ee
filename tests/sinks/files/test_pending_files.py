"""What lies in the staging folder: who sees it, who removes it, and what when it can't be written."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from typing_extensions import Self

from tests.support.raising import raising
from twopc import Participant, Round
from twopc.errors import ConfigurationError, Refused
from twopc_files.file_names import FileHandle
from twopc_files.outcomes import write_failed
from twopc_files.sink import FileSink
from twopc_files.stores import local
from twopc_files.stores.store import FileOfParts

if TYPE_CHECKING:
    from tests.sinks.files.conftest import MakeSink, PreCommit


ROWS = pa.record_batch({"value": ["a", "b"]})


def run_participant(sink: FileSink, *batches: pa.RecordBatch, batch_id: int = 0) -> None:
    with Participant({"orders": sink}, Round(1, batch_id), partition=0) as participant:
        for batch in batches:
            participant.write("orders", batch)
        participant.pre_commit()


def test_begin_makes_nothing_that_a_reader_sees(folder: Path, make_sink: MakeSink) -> None:
    sink = make_sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    assert not folder.exists()
    sink.write(transaction, ROWS)
    assert [path.name for path in folder.iterdir()] == ["_twopc"]
    assert list(folder.rglob("*.parquet")) == []
    sink.discard(transaction)


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_readers_see_what_is_committed_and_no_pending_file(
    kind: str, folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    make_sink().commit(pre_commit(batch_id=0, format=kind))
    pre_commit(batch_id=1, format=kind)
    assert ds.dataset(folder, format=kind).count_rows() == 2
    if kind == "parquet":
        assert len(pd.read_parquet(folder)) == 2
    for pattern in (f"*.{kind}", f"**/*.{kind}", *["*"] * (kind == "parquet")):
        found = duckdb.execute(f"select count(*) from read_{kind}('{folder}/{pattern}')").fetchall()  # noqa: S608
        assert found == [(2,)], pattern


def test_recovery_finds_its_own_pending_files_and_no_file_that_looks_like_one(
    folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    own = pre_commit()
    [name] = (path.name for path in (folder / "_twopc").iterdir())
    others = [
        name.removeprefix("."),
        name.removesuffix(".staged"),
        f"{name}.bak",
        f"{name}~",
        name.upper(),
        name.replace(".log.", ".log2."),
        name.replace(".orders.", ".orders2."),
        name.replace("twopc.", "twopc2."),
        name.replace("twopc.", "twopc.log."),
        name.replace("-0.staged", ".staged"),
        name.replace("-0.staged", "-x.staged"),
        name.replace("-0.staged", ".0-0.staged"),
        name.replace("-0.staged", "-0-0.staged"),
        name.replace(".0-0.staged", "-0.staged"),
        name.replace(".0-0.staged", ".x-0.staged"),
        ".staged",
        "notes.txt",
    ]
    for other in others:
        (folder / "_twopc" / other).write_text("keep")
        (folder / other).write_text("keep")
    (folder / "_twopc" / name.replace(".1.0.0.0.0-", ".1.0.9.0.0-")).mkdir()
    sink = make_sink()
    found = list(sink.recover())
    assert [committable.transaction_id for committable in found] == [own.transaction_id]
    for committable in found:
        sink.abort(committable)
    assert not (folder / "_twopc" / name).exists()
    for other in others:
        assert (folder / "_twopc" / other).read_text() == "keep"
        assert (folder / other).read_text() == "keep"


def test_a_transaction_keeps_its_format_when_the_option_is_changed_before_its_commit(
    folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    committable = pre_commit(format="parquet")
    [found] = make_sink(format="json").recover()
    assert found.is_same_transaction(committable)
    make_sink(format="json").commit(committable)
    assert [path.suffix for path in folder.iterdir() if path.is_file()] == [".parquet"]


def test_recovery_of_a_folder_that_does_not_exist_finds_nothing_and_makes_nothing(
    folder: Path, make_sink: MakeSink
) -> None:
    assert list(make_sink().recover()) == []
    assert not folder.exists()


def test_an_aborted_writer_is_quiet_when_it_is_collected(make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    sink = make_sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, ROWS)
    sink.discard(transaction)
    del transaction
    gc.collect()
    assert noise == []


class FullDisk:
    """A file on a disk with room for some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["parquet", "json"])
@pytest.mark.parametrize("room", [0, 10, 100])
def test_a_disk_that_is_full_in_mid_file_names_the_transaction_and_leaves_nothing(
    kind: str, room: int, folder: Path, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(format=kind)
    monkeypatch.setattr(local, "open", lambda path, mode: FullDisk(path.open(mode), room), raising=False)
    with pytest.raises(OSError, match=r"twopc\.log\.orders.*batch 3.*No space left") as error:
        run_participant(sink, *[ROWS] * 10, batch_id=3)
    assert error.value.errno == errno.ENOSPC
    assert list((folder / "_twopc").iterdir()) == []


def test_a_sync_that_fails_is_a_vote_of_no(folder: Path, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    (folder / "_twopc").mkdir()
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(Refused, match=r"Input/output error.*Nothing of it is visible"):
        run_participant(make_sink(), ROWS)
    assert list((folder / "_twopc").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "error"),
    [
        *((number, OSError) for number in (errno.EBUSY, errno.ETIMEDOUT, errno.ENOSPC, errno.ENOENT)),
        *((number, ConfigurationError) for number in (errno.EACCES, errno.EROFS, errno.ENAMETOOLONG)),
        *((number, Refused) for number in (errno.EIO, errno.EFBIG, errno.ENODEV)),
    ],
)
def test_only_an_error_that_is_known_to_pass_is_tried_again(number: int, error: type[Exception]) -> None:
    """Spark runs the batch again after an OSError, and stops the query after the others."""
    assert type(write_failed(OSError(number, "the server's words"), "transaction t of batch 7")) in (
        {type(OSError(number, ""))} if error is OSError else {error}
    )


def test_an_id_that_is_used_twice_overwrites_no_pending_file(folder: Path, make_sink: MakeSink) -> None:
    sink = make_sink()
    name = sink.transactional_ids.allocate(Round(1, 0), 0)
    first = sink.begin(name)
    sink.write(first, ROWS)
    sink.pre_commit(first)
    with pytest.raises(Refused, match="File exists"):
        sink.write(sink.begin(name), ROWS)
    [staged] = (folder / "_twopc").iterdir()
    assert staged.stat().st_size > 0


def test_a_read_only_folder_is_a_clear_error(
    folder: Path, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "open", raising(PermissionError(errno.EACCES, "Permission denied")), raising=False)
    with pytest.raises(ConfigurationError, match=r"batch 3.*'path'.*Permission denied") as error:
        run_participant(make_sink(), ROWS, batch_id=3)
    assert str(folder) in str(error.value)


def test_a_coordinator_without_the_right_to_rename_vetoes(
    folder: Path, make_sink: MakeSink, pre_commit: PreCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **_: path != folder and access(path, mode))
    with pytest.raises(Refused, match="may not write to"):
        make_sink().seal([committable], age_s=0)


def test_a_folder_that_is_a_file_is_a_clear_error(folder: Path, make_sink: MakeSink) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    sink = make_sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    with pytest.raises((ConfigurationError, FileExistsError), match="could not be written"):
        sink.write(transaction, ROWS)


class InParts(FileOfParts):
    most_parts = 3

    def __init__(self) -> None:
        super().__init__(local.Local(Path("/nowhere")), FileHandle("id", "pending", "target"))
        self.uploaded: list[bytes] = []

    def upload_part(self, number: int, data: bytearray) -> None:
        assert number == len(self.uploaded)
        self.uploaded.append(bytes(data))


@pytest.mark.parametrize("written", [[65], [1] * 65, [7, 50, 8], [30, 30, 5]])
def test_all_parts_but_the_last_have_one_size_however_the_file_is_written(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cloudflare's R2 refuses other parts, and only when the upload is completed."""
    monkeypatch.setattr("twopc_files.stores.store.PART_BYTES", 30)
    contents, start = bytes(range(65)), 0
    with InParts() as file:
        for length in written:
            file.write(contents[start : start + length])
            start += length
            assert len(file._buffer) < 30
    assert file.uploaded == [contents[:30], contents[30:60], contents[60:]]


def test_a_file_of_more_parts_than_its_store_takes_is_refused_before_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc_files.stores.store.PART_BYTES", 30)
    file = InParts()
    file.write(bytes(90))
    with pytest.raises(OSError, match="'max_bytes_per_file'"):
        file.write(bytes(30))
    assert len(file.uploaded) == 3
