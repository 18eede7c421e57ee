"""Today's code reads the logs of released formats: frozen entries of every kind, with a transaction of every backend.

``docs/versions.md`` has the promise. ``tests/unit/log_format/record.py`` has written the entries.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.memory_log import MemoryLog
from twopc import Committable, Coordinator
from twopc.checkpoint.offsets import text_of
from twopc.errors import CorruptLog
from twopc.log import factored
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision, Entry, Kind
from twopc.log.entry_json import FORMAT, parse, serialise
from twopc.log.store import open_store
from twopc.testing.memory import MemorySink, MemoryTarget
from twopc.transactional_ids import TransactionalIdPool
from twopc_delta.commit import Sealed
from twopc_files.file_names import decidable_files
from twopc_iceberg.prepared import of_committable
from twopc_kafka import handles
from twopc_pravega.controller import Txn

FOLDER = Path(__file__).parent / "log_format"

DATA = {file: file.read_bytes() for file in sorted(FOLDER.glob("format_*/*.json"))}
ENTRIES = {file: parse(data, file.name) for file, data in DATA.items()}
OF_FORMAT_1 = [entry for file, entry in ENTRIES.items() if file.parent.name == "format_1"]

NAMES = {file: f"{file.parent.name}/{int(file.stem)}-{entry.kind}" for file, entry in ENTRIES.items()}

each_entry = pytest.mark.parametrize("file", DATA, ids=NAMES.get)

BACKENDS = ("delta", "files", "iceberg", "kafka", "kafka-offsets", "mysql", "postgres", "pravega", "sql")


def test_there_are_entries_of_every_kind_in_every_format_up_to_todays() -> None:
    for number in range(1, FORMAT + 1):
        kinds = {entry.kind for file, entry in ENTRIES.items() if file.parent.name == f"format_{number}"}
        assert kinds == {*get_args(Kind)}, (
            f"run python -m tests.unit.log_format.record; see docs/versions.md ({number})"
        )


def batches(decisions: tuple[Decision, ...]) -> list[tuple[int, int]]:
    return [(each.round.incarnation, each.batch_id) for each in decisions]


def spark_entry(batch_id: int) -> str:
    """What Spark wrote to its offset log, and what a repaired checkpoint gets back."""
    end, at = 3 * (batch_id + 1), 1795000000000 + batch_id
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{at},"conf":{{}}}}\n{{"orders":{{"0":{end},"1":{end}}}}}'


def read_by(entry: Entry) -> str | None:
    return text_of(entry.reads) if isinstance(entry.reads, dict) else None


@pytest.fixture(autouse=True)
def _factored_from_a_few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded log of format 2 has two transactions of each sink, and they are factored."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "file" in params and params["file"].parent.name == "format_2":
        monkeypatch.setattr(factored, "FACTORED_FROM", 2)


def test_an_entry_has_the_format_that_can_hold_it() -> None:
    """So that an older release reads what it can."""
    found = {NAMES[file]: json.loads(data)["format"] for file, data in DATA.items()}
    assert {number for name, number in found.items() if name.startswith("format_1")} == {1}
    has_decision = {NAMES[file] for file, entry in ENTRIES.items() if entry.unresolved}
    of_2 = {name for name in found if name.startswith("format_2")}
    assert {name for name in of_2 if found[name] == 2} == has_decision & of_2


def test_the_values_of_format_1_are_what_was_recorded() -> None:
    found = [
        (e.kind, e.incarnation, e.decided, e.committed_through, batches(e.unresolved), read_by(e)) for e in OF_FORMAT_1
    ]
    reads = [spark_entry(batch_id) for batch_id in (0, 1, 2)]
    assert found == [
        ("open", 1, None, None, [], None),
        ("decide", 1, 0, -1, [(1, 0)], reads[0]),
        ("complete", 1, 0, 0, [], reads[0]),
        ("decide", 1, 1, 0, [(1, 1)], reads[1]),
        ("close", 1, 1, 1, [], reads[1]),
        ("open", 2, 1, 1, [], reads[1]),
        ("decide", 2, 2, 1, [(2, 2)], reads[2]),
        ("amend", 2, 2, 1, [(2, 2)], reads[2]),
        ("abandon", 2, 2, 1, [(2, 2)], reads[2]),
        ("open", 3, 2, 1, [(2, 2)], reads[2]),
    ]
    first = OF_FORMAT_1[0]
    assert len({entry.entry_id for entry in OF_FORMAT_1}) == len(OF_FORMAT_1)
    assert {(entry.log_id, entry.owner) for entry in OF_FORMAT_1} == {(first.log_id, first.owner)}
    assert first.owner == "5a3f0a52-6a0c-4a4e-9d3c-0c7b1f7f4f5e"
    assert all({*entry.prefixes} == {*BACKENDS} for entry in OF_FORMAT_1)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]{12}\+00:00", entry.written_at) for entry in OF_FORMAT_1)


def test_what_was_abandoned_in_format_1_is_read_with_who_and_when() -> None:
    abandon, later = OF_FORMAT_1[-2:]
    [lost] = abandon.abandoned
    assert (lost.by, lost.at, lost.given_up.batch_id) == ("ann@ops", abandon.written_at, 2)
    [given_up] = lost.given_up.committables["postgres"]
    [left] = abandon.unresolved[0].committables["postgres"]
    before = OF_FORMAT_1[-3].unresolved[0].committables["postgres"]
    assert before == (given_up, left)
    assert later.abandoned == abandon.abandoned


def decision_of(batch_id: int, number: int) -> Decision:
    of_format = [entry for file, entry in ENTRIES.items() if file.parent.name == f"format_{number}"]
    return next(e.unresolved[0] for e in of_format if e.kind == "decide" and e.decided == batch_id)


each_format = pytest.mark.parametrize("number", range(1, FORMAT + 1))


@each_format
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transaction_of_each_format_is_read_with_all_that_it_has(backend: str, number: int) -> None:
    may_time_out = backend in ("kafka", "kafka-offsets", "pravega")
    for batch_id in range(3):
        committables = decision_of(batch_id, number).committables[backend]
        assert [each.records for each in committables] == ([1, 1] if backend == "kafka-offsets" else [3, 3])
        assert all(each.bytes for each in committables)
        for partition, each in enumerate(committables):
            assert bool(each.replay_copy) is may_time_out
            assert (each.fingerprint and each.fingerprint.partition) == (partition if may_time_out else None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_recognizes_the_transactional_ids_of_format_1_as_its_own(backend: str) -> None:
    entry = OF_FORMAT_1[1]
    pool = TransactionalIdPool(entry.prefixes[backend], entry.log_id, backend)
    owns = pool.owns_leased if backend in ("kafka", "kafka-offsets") else pool.owns_exact
    names = [each.transaction_id for each in entry.unresolved[0].committables[backend]]
    assert len({*names}) == 2
    assert all(map(owns, names))


def _of_kafka(committable: Committable) -> object:
    numbers = (*handles.identity_of(committable), handles.version_of(committable))
    assert min(numbers) >= 0
    ids, partitions = handles.topic_ids_of(committable), handles.partitions_of([committable])
    assert partitions
    return (*numbers, ids, partitions, handles.has_timeout(committable))


def _of_iceberg(committable: Committable) -> object:
    [prepared] = of_committable(committable)
    assert (prepared.rows, prepared.files) == (3, 3)
    assert prepared.partitions
    assert committable.handle["branch"] == "main"
    return prepared


def _of_delta(committable: Committable) -> object:
    assert re.fullmatch(r"[0-9a-f]+", str(committable.handle["digest"]))
    return Sealed.of(committable)


def _of_sql(committable: Committable) -> object:
    assert str(committable.handle["table"]).endswith("orders")
    return committable.handle["table"]


def _without_handle(committable: Committable) -> object:
    return committable.transaction_id


READERS: dict[str, Callable[[Committable], object]] = {
    "delta": _of_delta,
    "files": decidable_files,
    "iceberg": _of_iceberg,
    "kafka": _of_kafka,
    "kafka-offsets": _of_kafka,
    "mysql": _without_handle,
    "postgres": _without_handle,
    "pravega": lambda committable: Txn.from_json(committable.handle),
    "sql": _of_sql,
}


@each_format
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_reads_its_handles_also_with_a_key_of_a_later_release(backend: str, number: int) -> None:
    for batch_id in (0, 1, 2):
        for each in decision_of(batch_id, number).committables[backend]:
            later = Committable(each.transaction_id, {**each.handle, "later": [1]}, each.records)
            assert READERS[backend](each) == READERS[backend](later)


@each_entry
def test_an_entry_is_written_again_byte_for_byte(file: Path) -> None:
    assert serialise(ENTRIES[file]) == DATA[file]


def with_more(value: Any) -> Any:
    """JSON in which every object has one more key, except those whose keys are names or belong to a backend."""
    if isinstance(value, list):
        return [with_more(each) for each in value]
    if not isinstance(value, dict):
        return value
    as_is = ("handle", "prefixes", "reads", "each")
    more = {name: each if name in as_is else with_more(each) for name, each in value.items()}
    return more if {*value} <= {*BACKENDS} else {**more, "later": {"key": 1}}


@each_entry
def test_keys_of_a_later_release_are_ignored_and_not_carried_forward(file: Path) -> None:
    later = json.dumps(with_more(json.loads(DATA[file]))).encode()
    assert b'"later"' in later
    assert parse(later, "here") == ENTRIES[file]
    assert b'"later"' not in serialise(parse(later, "here"))


def test_a_key_of_a_later_release_in_a_handle_is_carried_forward() -> None:
    later = DATA[next(iter([file for file, entry in ENTRIES.items() if entry.kind == "decide"]))]
    later = later.replace(b'"handle": {', b'"handle": {"later": 1, ').replace(b'"later": 1, }', b'"later": 1}')
    entry = parse(later, "here")
    assert all(c.handle["later"] == 1 for each in entry.unresolved[0].committables.values() for c in each)
    assert serialise(entry) == later


@each_entry
def test_a_later_format_is_refused_with_what_to_do_before_anything_is_written(file: Path) -> None:
    value = json.loads(DATA[file]) | {"format": FORMAT + 1}
    log = MemoryLog()
    log.put_if_absent(0, json.dumps(value).encode())
    with pytest.raises(CorruptLog, match=rf"has format {FORMAT + 1}.*reads format {FORMAT}: a later release wrote it"):
        Coordinator({"kafka": MemorySink(MemoryTarget())}, log, owner=value["owner"]).recover()
    assert log.slots() == [0]


def test_an_operators_look_at_a_log_reads_all_of_it() -> None:
    tail = read_tail(open_store(FOLDER / "format_1"))
    assert tail == (9, OF_FORMAT_1[9])


def undecided(entry: Entry, backend: str) -> str:
    return f"{entry.prefixes[backend]}.{entry.log_id}.{backend}.{entry.incarnation}.99.0.0.0"


@each_entry
def test_recovery_from_each_entry_commits_exactly_what_it_has_decided(file: Path) -> None:
    entry, target = ENTRIES[file], MemoryTarget()
    due = {
        each.transaction_id: backend
        for decision in entry.unresolved
        for backend, committables in decision.committables.items()
        for each in committables
    }
    target.open = {name: [{"transaction": name}] for name in due}
    target.open |= {undecided(entry, backend): [{"transaction": "undecided"}] for backend in entry.prefixes}
    sinks = {backend: MemorySink(target) for backend in entry.prefixes}
    for backend, sink in sinks.items():
        sink.prefix = entry.prefixes[backend]
    log = MemoryLog()
    for other, data in DATA.items():
        if other.parent == file.parent and other <= file:
            log.put_if_absent(int(other.stem), data)
    with Coordinator(sinks, log, owner=entry.owner, rest_interval_s=None) as coordinator:
        opened = coordinator.recover()
        assert (opened.incarnation, opened.decided) == (entry.incarnation + 1, entry.decided)
        assert coordinator.next_batch_id == (0 if entry.decided is None else entry.decided + 1)
    assert sorted(row["transaction"] for row in target.visible) == sorted(due)
    assert not target.open
    closed = read_tail(log)
    assert closed is not None
    assert (closed[1].kind, closed[1].unresolved, closed[1].abandoned) == ("close", (), entry.abandoned)


def test_no_entry_has_a_secret() -> None:
    assert not [file.name for file, data in DATA.items() if b"hunter2" in data or b"password" in data]
