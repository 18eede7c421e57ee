"""What ``docs/security.md`` says of somebody who may write to the log or to a folder of replay copies."""

import ast
import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import twopc
from tests.support.pages import ROOT
from tests.support.phase_one import writes
from tests.support.sources import GROUP, SOURCES, nodes
from twopc.cli.commands import cli
from twopc.errors import CorruptLog, Fenced, LogMismatch
from twopc.replay import DamagedCopy, ReplayCopies
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Committable, JsonValue
from twopc.transactional_ids import Round, TransactionId

UNPICKLES = {"twopc/spark/task.py", "twopc/spark/pickled_sinks.py", "twopc/spark/data_source/round.py"}
"""What Spark carries from the driver to its own tasks, and nothing that was stored."""

EXECUTES = {"cloudpickle", "dill", "eval", "exec", "marshal", "pickle", "read_pickle", "shelve", "unsafe_load"}


@pytest.mark.xdist_group(GROUP)
def test_nothing_of_the_product_unpickles_or_executes_but_what_spark_carries() -> None:
    found = set()
    for module, source in SOURCES.items():
        for node in () if "testing" in source.parts else nodes(module):  # which forks processes of its own
            names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if EXECUTES & {name, *names}:
                found.add(source.relative_to(ROOT).as_posix())
    assert len(SOURCES) > 100
    assert found <= UNPICKLES


class Log:
    """The log of a query that has decided and committed batches 0 to 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "log"
        self.target = MemoryTarget()
        with self.open() as coordinator:
            coordinator.recover()
            for batch_id in range(3):
                self.run(coordinator, batch_id)

    def open(self, owner: str = "query") -> twopc.Coordinator:
        self.sinks = {"sink": MemorySink(self.target)}
        return twopc.Coordinator(self.sinks, str(self.folder), owner=owner)

    def run(self, coordinator: twopc.Coordinator, batch_id: int) -> None:
        coordinator.run(batch_id, writes(self.sinks, {"id": [batch_id]}))

    @property
    def newest(self) -> Path:
        return max(self.folder.glob("*.json"))

    def forge(self, **values: Any) -> None:
        entry = json.loads(self.newest.read_text(encoding="utf-8"))
        self.newest.write_text(json.dumps({**entry, **values}), encoding="utf-8")

    def written(self) -> list[int]:
        return sorted(row["id"] for row in self.target.visible)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def nested(path: Path) -> None:
    path.write_text("[" * 200_000, encoding="utf-8")


def garbled(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Runs(path.parent)))


class _Runs:
    """Leaves a file where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.command = f"touch {folder}/ran"

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("damage", [nested, garbled, pickled])
def test_a_forged_file_in_place_of_an_entry_is_refused_and_runs_nothing(
    damage: Callable[[Path], None], log: Log
) -> None:
    damage(log.newest)
    before = sorted((file.name, file.read_bytes()) for file in log.folder.iterdir())
    with pytest.raises(CorruptLog, match=log.newest.name), log.open() as coordinator:
        coordinator.recover()
    assert sorted((file.name, file.read_bytes()) for file in log.folder.iterdir()) == before


def test_an_enlarged_entry_is_refused_and_not_read_into_memory(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_ENTRY", 1 << 20)
    monkeypatch.setattr("twopc.log.store.LONGEST_ENTRY", 1 << 20)
    os.truncate(log.newest, 1 << 28)
    tracemalloc.start()
    with pytest.raises(CorruptLog, match="no entry has more than 1048576 bytes"), log.open() as coordinator:
        coordinator.recover()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 24


def test_the_entry_of_another_query_is_refused(log: Log, tmp_path: Path) -> None:
    other = Log(tmp_path / "other")
    with pytest.raises(LogMismatch, match="belongs to query"), other.open("another") as coordinator:
        coordinator.recover()
    log.forge(owner="another", log_id="0" * 12)
    with pytest.raises((LogMismatch, CorruptLog)), log.open() as coordinator:
        coordinator.recover()
    assert log.written() == [0, 1, 2]


def test_an_old_entry_that_is_put_back_as_the_newest_fences_the_driver_that_runs(log: Log) -> None:
    with log.open() as coordinator:
        coordinator.recover()
        oldest = min(log.folder.glob("*.json"))
        shutil.copy(oldest, log.folder / f"{int(log.newest.stem) + 1:020d}.json")
        with pytest.raises(Fenced):
            log.run(coordinator, 3)
    assert log.written() == [0, 1, 2]


def test_a_query_that_is_further_than_an_old_entry_is_refused(log: Log) -> None:
    entries_of_log = sorted(log.folder.glob("*.json"))
    for newer in entries_of_log[2:]:  # after the decision of batch 0
        newer.unlink()
    with log.open() as coordinator:
        coordinator.recover()
        with pytest.raises(LogMismatch, match="not of the same age"):
            log.run(coordinator, 3)
    assert log.written() == [0, 1, 2]


def test_texts_of_a_forged_log_do_nothing_to_a_terminal(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    for older in sorted(log.folder.glob("*.json"))[:-1]:
        older.unlink()
    log.forge(owner="\x1b]0;renamed\x07\x1b[2Jquery")
    with pytest.raises(SystemExit):
        cli(["status", str(log.folder)])
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2Jquery" in shown
    assert not {"\x1b", "\x07"} & {*shown}


@pytest.fixture
def copies(tmp_path: Path) -> ReplayCopies:
    return ReplayCopies(str(tmp_path / "copies"))


def copied(copies: ReplayCopies, table: pa.Table) -> Committable:
    name = TransactionId("twopc", "0" * 12, "sink", Round(1, 0), 0, 0, 0)
    copy = copies.create(name, table.schema)
    for batch in table.to_batches():
        copy.write(batch)
    return Committable(name.exact, {}, records=table.num_rows, replay_copy=copy.finish())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Arrow, about the type
def test_a_forged_copy_runs_nothing_when_it_is_read(copies: ReplayCopies, tmp_path: Path) -> None:
    field = pa.field("id", pa.int64()).with_metadata(
        {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(_Runs(tmp_path))}
    )
    committable = copied(copies, pa.table({"id": [1]}, schema=pa.schema([field])))
    assert committable.replay_copy is not None
    assert sum(batch.num_rows for batch in copies.read(committable.replay_copy)) == 1
    assert not (tmp_path / "ran").exists()


def test_a_copy_with_other_records_than_were_decided_replaces_nothing(copies: ReplayCopies, tmp_path: Path) -> None:
    committable = copied(copies, pa.table({"id": [1, 2]}))
    assert committable.replay_copy is not None
    enlarged = copied(ReplayCopies(str(tmp_path / "forged")), pa.table({"id": [1, 2, 3]}))
    shutil.copy(tmp_path / "forged" / str(enlarged.replay_copy), tmp_path / "copies" / committable.replay_copy)
    assert not copies.can_replace(committable)
    with (tmp_path / "copies" / committable.replay_copy).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DamagedCopy):
        [*copies.read(committable.replay_copy)]


@pytest.mark.parametrize("name", ["../../home/ann/.bashrc", "/etc/passwd", "..", ""])
def test_a_forged_entry_names_no_copy_outside_of_the_folder(name: str) -> None:
    value: dict[str, JsonValue] = {"transaction_id": "t", "handle": {}, "records": 1, "replay_copy": name}
    with pytest.raises(TypeError, match="file name"):
        Committable.from_json(value)
