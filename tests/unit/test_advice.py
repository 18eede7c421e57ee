"""What an error of the catalog advises is done, and works. ``docs/internals/advice.md`` has these tests and others."""

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.kafka.test_leases import POOL
from tests.support.advice import told
from tests.support.memory_log import MemoryLog
from tests.support.phase_one import writes
from tests.support.raising import raising
from tests.unit import test_recovery as recovery
from tests.unit.test_coordinator import World, run, sink
from tests.unit.test_half_of_the_state import Query, remove
from twopc import Committable, Coordinator, create_sink
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    Fenced,
    OutcomeUnknown,
    PoolExhausted,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
)
from twopc.log.entry_json import FORMAT
from twopc.testing import MemorySink
from twopc_kafka import leases
from twopc_kafka.leases import lease

Columns = Mapping[str, pa.Array]

LONG_AGO = dt.date(1500, 1, 1)
OF_SECONDS = dt.datetime(1900, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def query() -> Query:
    return Query()


# Before the decision. -------------------------------------------------------------------------------------------------


@pytest.mark.advice("Retriable")
def test_a_target_system_that_was_away_is_asked_by_the_same_call_again(world: World) -> None:
    coordinator = world.coordinator(start_timeout_s=0)
    sink(coordinator, "a").during["open"] = raising(Retriable("no broker answered"))
    with pytest.raises(Retriable, match="no broker answered"):
        run(coordinator, 0)
    sink(coordinator, "a").during.clear()
    run(coordinator, 0)
    assert world.visible("a") == ["0-0", "0-1"]


@pytest.mark.advice("failed before its decision")
def test_a_batch_that_was_rolled_back_is_run_again(world: World) -> None:
    coordinator = world.coordinator()
    with pytest.raises(RoundAborted, match="failed before its decision"):
        coordinator.run(0, raising(TimeoutError("no answer")))
    run(coordinator, 0)
    assert world.visible("a") == ["0-0", "0-1"]


@pytest.mark.advice("Refused")
def test_a_batch_that_was_refused_is_written_when_the_cause_is_removed(world: World) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "b").during["seal"] = raising(Refused("no right to seal"))
    with pytest.raises(Refused, match="no right to seal"):
        run(coordinator, 0)
    sink(coordinator, "b").during.clear()
    run(coordinator, 0)
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]


@pytest.mark.advice("transactional ids of … on")
def test_the_next_start_uses_the_ids_that_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "NAMES_AT_MOST", 1)
    lease(POOL, (1, 0)).answered()
    with pytest.raises(PoolExhausted, match="transactional ids of"):
        lease(POOL, (1, 0))
    assert lease(POOL, (2, 0)).name


def write(options: Mapping[str, Any], columns: Columns | pa.RecordBatch) -> None:
    """Write records to files, as one batch of a new query."""
    files = create_sink("files", options)
    batch = columns if isinstance(columns, pa.RecordBatch) else pa.record_batch(dict(columns))
    with Coordinator({"out": files}, MemoryLog(), owner="query", rest_interval_s=None) as coordinator:
        coordinator.run(0, writes({"out": files}, batch))


def files_in(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "_twopc" not in file.parts]


def options_of(folder: Path, given: str) -> dict[str, str]:
    """Return the options of ``format=text delimiter=;``."""
    return {"path": str(folder), **dict(each.split("=") for each in given.split())}


@pytest.mark.advice("ConfigurationError")
def test_the_option_that_an_error_names_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be one of parquet") as refused:
        write(options_of(tmp_path, "format=parqet"), {"v": pa.array([1])})
    assert refused.value.option == "format"
    write(options_of(tmp_path, "format=parquet"), {"v": pa.array([1])})
    assert len(files_in(tmp_path)) == 1


@pytest.mark.advice("SchemaMismatch")
def test_a_column_that_can_not_be_written_is_cast(tmp_path: Path) -> None:
    columns = {"v": pa.array([1])}
    with pytest.raises(SchemaMismatch):
        write(options_of(tmp_path, "format=text"), columns)
    write(options_of(tmp_path, "format=text"), {"v": columns["v"].cast(pa.string())})
    assert len(files_in(tmp_path)) == 1


def days(*values: str) -> Columns:
    return {"v": pa.array([1] * len(values)), "day": pa.array(values)}


TEXT = pa.array([None], pa.string())
MAP = pa.map_(pa.string(), pa.int64())
WITHOUT_NULLS = pa.record_batch([pa.array([None], pa.int64())], schema=pa.schema([pa.field("v", pa.int64(), False)]))
CORRECT = "Correct or filter such records"

REFUSED: dict[str, tuple[str, Columns | pa.RecordBatch, str, str, Columns]] = {
    "it is null, and a line of text can't be one": (
        "format=text", {"v": TEXT}, "Write an empty string for it", "format=text", {"v": pa.array([""])}
    ),
    "it has a line break": (
        "format=text", {"v": pa.array(["a\nb"])}, CORRECT, "format=text", {"v": pa.array(["a b"])}
    ),
    "it begins with U+FEFF": (
        "format=text", {"v": pa.array(["\ufeffa"])}, CORRECT, "format=text", {"v": pa.array(["a"])}
    ),
    "it is null and the only column": (
        "format=csv", {"v": TEXT}, "Set the option '(.*?)'", "format=csv {}=NULL", {"v": TEXT}
    ),
    "it is written as the option 'null_value'": (
        "format=csv null_value=0", {"v": pa.array([0])},
        "Set another '(.*?)'", "format=csv {}=n/a", {"v": pa.array([0])},
    ),
    "a text is not valid UTF-8": (
        "format=parquet", {"v": pa.array([b"\xff"]).view(pa.string())},
        "Or write the column as binary", "format=parquet", {"v": pa.array([b"\xff"])},
    ),
    "a map has a key twice": (
        "format=parquet", {"v": pa.array([[("a", 1), ("a", 2)]], MAP)},
        CORRECT, "format=parquet", {"v": pa.array([[("a", 2)]], MAP)},
    ),
    "its zone's offset from UTC had seconds": (
        "format=json", {"v": pa.array([OF_SECONDS], pa.timestamp("us", "Europe/Amsterdam"))},
        "Use a column in (UTC)", "format=json", {"v": pa.array([OF_SECONDS], pa.timestamp("us", "UTC"))},
    ),
    "Spark can't read back from an ORC file": (
        "format=orc", {"v": pa.array([LONG_AGO])}, "or use (Parquet)", "format={}", {"v": pa.array([LONG_AGO])}
    ),
    "a folder can't be named after it": ("partition_by=day", days("a\0"), CORRECT, "partition_by=day", days("a")),
    "a folder named after it would have": (
        "partition_by=day", days("a" * 300), CORRECT, "partition_by=day", days("a" * 100)
    ),
    "in a folder's name for null": (
        "partition_by=day", days(""), CORRECT, "partition_by=day", days("none")
    ),
    "the schema of the records allows no null there": (
        "format=parquet", WITHOUT_NULLS, CORRECT, "format=parquet", {"v": pa.array([1])}
    ),
}  # fmt: skip
"""The words of an error → options and records that are refused, the advice, and options and records that follow it."""


@pytest.mark.advice(*REFUSED)
@pytest.mark.parametrize("words", REFUSED)
def test_a_record_that_is_refused_is_corrected_or_the_setting_changed(words: str, tmp_path: Path) -> None:
    given, refused, advice, corrected, columns = REFUSED[words]
    with pytest.raises(RecordRefused, match=re.escape(words)) as raised:
        write(options_of(tmp_path, given), refused)
    found = told(raised.value, advice)
    write(options_of(tmp_path, corrected.format(found[found.lastindex or 0].lower())), columns)
    assert len(files_in(tmp_path)) == 1


# The log. -------------------------------------------------------------------------------------------------------------


def later_format(entry: bytes) -> bytes:
    return json.dumps({**json.loads(entry), "format": FORMAT + 1}).encode()


@pytest.mark.advice("is not an entry of a commit log", "a later release wrote it")
@pytest.mark.parametrize(
    ("words", "damaged"),
    [
        ("is not an entry of a commit log", lambda _: b""),
        ("is not an entry of a commit log", lambda entry: entry[:-9]),
        ("is not an entry of a commit log", lambda entry: entry.replace(b'"', b"\xff")),
        ("a later release wrote it", later_format),
    ],
    ids=["empty", "cut off", "garbled", "later"],
)
def test_an_entry_that_is_damaged_is_restored(query: Query, words: str, damaged: Callable[[bytes], bytes]) -> None:
    with query.driver() as driver:
        query.run(driver, 0)
    newest = max(query.log.entries)
    whole = query.log.entries[newest]
    query.log.entries[newest] = damaged(whole)
    with pytest.raises(CorruptLog, match=words):
        query.run(query.driver(), 1)
    query.log.entries[newest] = whole
    query.run(query.driver(), 1)
    assert query.written() == [0, 1]


@pytest.mark.advice("its own newest entry is gone from the log")
def test_newest_entries_that_were_removed_under_a_driver_are_restored(query: Query) -> None:
    driver = query.driver()
    query.run(driver, 0, 1)
    backup = dict(query.log.entries)
    remove(query.log, lambda slots: slots[-1:])
    with pytest.raises(Fenced, match="its own newest entry is gone from the log"):
        query.run(driver, 2)
    query.log.entries = backup
    query.run(query.driver(), 2)
    assert query.written() == [0, 1, 2]


# After the decision. --------------------------------------------------------------------------------------------------


class Unknown(MemorySink):
    """It commits, and forgets that it has."""

    def commit(self, committable: Committable) -> None:
        super().commit(committable)
        raise OutcomeUnknown(f"{committable.transaction_id} was forgotten")


@pytest.mark.advice("OutcomeUnknown")
def test_a_transaction_whose_records_are_there_is_given_up_and_the_query_goes_on(tmp_path: Path) -> None:
    shop = recovery.World(tmp_path / "log")
    stuck = shop.stuck(Unknown(shop.data))
    assert len(shop.data.visible) == 3  # the operator reads the target system
    stuck.give_up(0, stuck.lost(0, even_if_repairable=False), "ann")
    with shop.coordinator(MemorySink(shop.data)) as coordinator:
        coordinator.run(1, shop.phase_one)
    assert (len(shop.data.visible), len(shop.progress.visible)) == (6, 6)
