"""What a batch costs grows with its transactions, and no faster. Operations are counted, and never timed."""

import json
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commit_log import CommitLog
from tests.support.memory_log import MemoryLog
from twopc import Committable, Coordinator, Participant, Round
from twopc.cli.verdicts import Verdict, judge
from twopc.errors import ConfigurationError, CorruptLog
from twopc.log import factored
from twopc.log.entries import Decision, Entry, abandoned, amended, decided, opened
from twopc.log.entry_json import parse, serialise
from twopc.log.history import FollowedLog
from twopc.log.store import open_store
from twopc.loss import recognized_anywhere
from twopc.participant import Vote
from twopc.stores import disk
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Fingerprint, JsonValue
from twopc.transactional_ids import TransactionalIdPool

MANY = 400
RECORD = pa.record_batch({"value": ["a"]})


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often two transactions were compared, in any way."""
    counted = Counter[str]()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counted[name] += 1
            return real(*arguments)

        return call

    for name in ("is_same_transaction", "__eq__"):
        monkeypatch.setattr(Committable, name, counting(name, getattr(Committable, name)))
    monkeypatch.setattr("twopc.loss._contents", counting("contents", lambda c: (c.records, c.fingerprint.hash)))
    return counted


def of_kafka(number: int, sink: str = "orders", batch_id: int = 0) -> Committable:
    """A transaction as Kafka's sink seals it."""
    handle: dict[str, JsonValue] = {
        "producer_id": 4_000 + number,
        "producer_epoch": number % 7,
        "topic_ids": {"orders": "1zUGTWZMSCmlq1ewpfrBfQ"},
        "end_txn_version": 5,
        "partitions": {"orders": [number % 4, 4 + number % 4]},
    }
    name = f"twopc.66be0102bf2d.{sink}.{number:016x}.{batch_id % 4}"
    return Committable(name, handle, 50_000 + number, bytes=5_400_000 + 13 * number)


def decision(transactions: int, sinks: int = 1) -> Decision:
    names = [f"orders{number}" for number in range(sinks)]
    return Decision(Round(1, 0), {name: tuple(of_kafka(n, name) for n in range(transactions)) for name in names})


# Comparisons. --------------------------------------------------------------------------------------------------------


def test_recovery_compares_each_open_transaction_with_the_decided_one_of_its_name_alone(counts: Counter[str]) -> None:
    """A driver dies amid a batch, and the log still has the one before as unresolved. Each had many tasks."""
    target, log = MemoryTarget(), MemoryLog()

    def votes(round: Round) -> Iterator[Vote]:
        for partition in range(MANY):
            with Participant({"a": sink}, round, partition=partition) as participant:
                participant.write("a", RECORD)
                yield participant.pre_commit()

    def killed(round: Round) -> list[Vote]:
        assert len([*votes(round)]) == MANY
        raise KeyboardInterrupt  # nothing is rolled back, as after a kill

    sink = MemorySink(target)
    coordinator = Coordinator({"a": sink}, log, owner="query", rest_interval_s=None)
    coordinator.run(0, votes)
    with suppress(KeyboardInterrupt):
        coordinator.run(1, killed)
    assert len(target.open) == MANY
    counts.clear()
    Coordinator({"a": MemorySink(target)}, log, owner="query", rest_interval_s=None).recover()
    assert (len(target.open), len(target.visible)) == (0, MANY)
    assert counts.total() <= 4 * MANY


def test_an_operators_look_compares_each_transaction_with_those_of_its_name_alone(counts: Counter[str]) -> None:
    pool = TransactionalIdPool("twopc", "66be0102bf2d", "orders0")
    tail = decided(opened(None, "query"), decision(MANY))
    open_ = [of_kafka(number, "orders0") for number in range(MANY // 2, 2 * MANY)]
    verdicts = Counter(row.verdict for row in judge(tail, pool, open_))
    assert (verdicts[Verdict.DECIDED], verdicts[Verdict.ENDED]) == (MANY // 2, MANY // 2)
    assert counts.total() <= 4 * MANY


def test_giving_up_a_whole_batch_compares_each_transaction_once(counts: Counter[str]) -> None:
    tail = decided(opened(None, "query"), decision(MANY))
    lost = tail.unresolved[0].committables
    [left] = abandoned(tail, 0, {"orders0": lost["orders0"][1:]}, "ann@ops").unresolved
    assert counts.total() <= 2 * MANY
    assert left.committables == {"orders0": lost["orders0"][:1]}


def test_a_batch_computed_again_under_other_partition_numbers_looks_each_one_up(counts: Counter[str]) -> None:
    lost = [Committable(f"lost{n}", {}, 1, fingerprint=Fingerprint(n, n)) for n in range(MANY)]
    again = [Committable(f"again{n}", {}, 1, fingerprint=Fingerprint(MANY - n, n)) for n in reversed(range(MANY))]
    found = recognized_anywhere(lost, again)
    assert counts.total() <= 4 * MANY
    assert found is not None
    assert [each.transaction_id for each in found] == [f"again{n}" for n in range(MANY)]


# Requests. -----------------------------------------------------------------------------------------------------------


def operations(transactions: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what a batch and the recovery of a killed one ask of the log, and of a sink per transaction."""
    counted, target, log = Counter[str](), MemoryTarget(), MemoryLog()

    def counting(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            counted[name] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    def votes(round: Round) -> Iterator[Vote]:
        for partition in range(transactions):
            with Participant({"a": sink}, round, partition=partition) as participant:
                participant.write("a", RECORD)
                yield participant.pre_commit()
        if round.batch_id == 2:
            raise KeyboardInterrupt

    for sink in (MemorySink(target), MemorySink(target)):
        for name in ("seal", "commit", "abort", "complete", "announce", "recover"):
            counting(sink, name)
        for name in ("slots", "read", "put_if_absent", "delete"):
            monkeypatch.setattr(log, name, getattr(MemoryLog, name).__get__(log))
            counting(log, name)
        coordinator = Coordinator({"a": sink}, log, owner="query", commits_at_once=1, rest_interval_s=None)
        with suppress(KeyboardInterrupt):
            for batch_id in (0, 1, 2) if coordinator.next_batch_id == 0 else ():
                coordinator.run(batch_id, votes)
        coordinator.recover()
    return counted


def test_a_batch_asks_the_log_as_often_for_many_transactions_as_for_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = operations(2, monkeypatch), operations(MANY, monkeypatch)
    for name in ("commit", "abort"):
        assert (many.pop(name) / few.pop(name)) == MANY / 2
    assert many == few


def test_a_reading_of_a_log_keeps_the_transactions_of_its_newest_entry_alone() -> None:
    """An operator's look at a log of 33 wide decisions would else need the memory for all of them at once."""
    log = MemoryLog()
    writer = CommitLog.open(log, "query")
    for batch_id in range(3):
        writer.decide(replace(decision(MANY), round=Round(1, batch_id)), None)
    followed = FollowedLog(log)
    for history in (followed.read(), followed.read()):
        kept = [sum(len(part) for d in e.unresolved for part in d.committables.values()) for e in history.entries]
        records = sum(of_kafka(number).records or 0 for number in range(MANY))
        assert kept == [0, 0, 0, MANY]
        assert history.sizes == ((0, 0), *[(MANY, records)] * 3)
        assert history.sinks == ["orders0"]


class Voted(dict[str, Committable]):
    """A vote, whose end can be seen."""


def test_the_votes_of_a_batch_are_gone_when_its_decision_is_written() -> None:
    sink, votes, left = MemorySink(MemoryTarget()), list[weakref.ref[Voted]](), list[bool]()

    class Log(MemoryLog):
        def put_if_absent(self, slot: int, data: bytes) -> None:
            left.append(any(vote() for vote in votes))
            super().put_if_absent(slot, data)

    def phase_one(round: Round) -> Iterator[Vote]:
        with Participant({"a": sink}, round, partition=0) as participant:
            participant.write("a", RECORD)
            vote = Voted(participant.pre_commit())
        votes.append(weakref.ref(vote))
        yield vote

    with Coordinator({"a": sink}, Log(), owner="query", rest_interval_s=None) as coordinator:
        coordinator.run(0, phase_one)
    assert left == [False, False, False]  # the opening, the decision and the stop


# Bytes. --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sinks", [1, 4])
def test_a_decision_takes_at_most_200_bytes_per_transaction(sinks: int) -> None:
    entry = decided(opened(None, "query"), decision(1_000, sinks))
    data = serialise(entry)
    assert len(data) <= 200 * 1_000 * sinks
    assert parse(data, "here") == entry


def test_what_the_rows_of_a_decision_share_is_one_object_for_all_of_them() -> None:
    [read] = parse(serialise(decided(opened(None, "query"), decision(MANY))), "here").unresolved
    assert len({id(each.handle["topic_ids"]) for each in read.committables["orders0"]}) == 1


def test_a_decision_of_a_few_transactions_is_one_that_older_releases_read() -> None:
    """One of many has another format, which they refuse by its number before they write anything."""
    formats = [
        json.loads(serialise(decided(opened(None, "query"), decision(transactions))))["format"]
        for transactions in (factored.FACTORED_FROM - 1, factored.FACTORED_FROM)
    ]
    assert formats == [1, 2]


def test_each_row_of_a_decision_takes_a_line() -> None:
    lines = serialise(decided(opened(None, "query"), decision(MANY))).decode().splitlines()
    assert sum(line.startswith('     ["') for line in lines) == MANY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
HANDLES = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)
COMMITTABLES = st.lists(
    st.builds(
        Committable,
        st.text(alphabet="ab.", max_size=4),
        HANDLES,
        st.none() | st.integers(0, 2),
        fingerprint=st.none() | st.builds(Fingerprint, st.integers(0, 2), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(COMMITTABLES)
def test_whatever_transactions_have_is_read_as_it_was_written(committables: list[Committable]) -> None:
    """Also where values are equal for Python and not in JSON, such as 1, 1.0 and true."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(factored, "FACTORED_FROM", 1)
        rows = json.loads(json.dumps(factored.to_json(committables)))
    read = [*factored.from_json(rows)]
    assert json.dumps([each.to_json() for each in read]) == json.dumps([each.to_json() for each in committables])


@pytest.mark.parametrize(
    "wrong",
    [
        {"each": None},
        {"each": 7},
        {"each": {"transaction_id": None}},
        {"each": {"transaction_id": {"starts": 1, "ends": ""}}},
        {"each": {"transaction_id": {"starts": "a"}}},
        {"each": {"transaction_id": {}}},
        {"each": [{}, {}]},
        {"each": {"transaction_id": {}, "handle": {"same": {}}, "records": {}, "bytes": {}}},
        {"each": {"transaction_id": {"startz": "x", "ends": ""}, "handle": {"same": {}}}},
        {"each": {"transaction_id": "starts", "handle": {"same": {}}}},
    ],
)
def test_a_template_or_a_row_that_no_coordinator_writes_is_refused(wrong: object) -> None:
    entry = json.loads(serialise(decided(opened(None, "query"), decision(1))))
    rows: list[object] = [["x"], ["x", "y"], [], [None], "x", {"transaction_id": "x"}, None]
    for row in rows:
        entry["unresolved"][0]["sinks"] = {"orders0": [wrong, row]}
        with pytest.raises(CorruptLog, match="is not an entry of a commit log"):
            parse(json.dumps(entry).encode(), "here")


def test_a_decision_is_refused_by_what_it_takes_when_nothing_is_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that amends it, such as by one transaction with other partitions, may have to write it so."""
    entry = decided(opened(None, "query"), decision(MANY))
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_DECISION", 2 * len(serialise(entry)))
    with pytest.raises(ConfigurationError, match="too many transactions"):
        serialise(entry)


def test_a_wide_decision_that_is_not_factored_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factored, "MOST_EXPANDED", 0)
    entry = decided(opened(None, "query"), decision(MANY))
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_DECISION", len(serialise(entry)))
    assert parse(serialise(entry), "here") == entry


@pytest.mark.parametrize("partitions", [1, 100])
def test_partitions_that_a_loop_counts_are_the_same_when_the_batch_comes_again(tmp_path: Path, partitions: int) -> None:
    reads: Any = {"orders": dict.fromkeys(range(partitions), 5)}
    for _ in range(2):
        with Coordinator({"sink": MemorySink(MemoryTarget())}, str(tmp_path / "log"), owner="loop") as coordinator:
            coordinator.run(0, lambda _: [], reads=reads)


def test_a_template_that_would_fill_the_memory_is_refused_unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factored, "MOST_EXPANDED", 10_000)
    template = {"each": {"transaction_id": {"starts": "x" * 1_000, "ends": ""}, "handle": {"same": {}}}}
    entry = json.loads(serialise(decided(opened(None, "query"), decision(1))))
    entry["unresolved"][0]["sinks"] = {"orders0": [template, *([str(n)] for n in range(20))]}
    with pytest.raises(CorruptLog, match="more than 10000 bytes when its rows are expanded"):
        parse(json.dumps(entry).encode(), "here")
    big: tuple[Committable, ...] = tuple(Committable("x" * 1_000 + str(n), {"a": n}) for n in range(MANY))
    assert not factored.is_factored(factored.to_json(big))  # what is written can be read


@pytest.mark.parametrize(
    "later",
    [
        lambda tail: opened(tail, "query"),
        lambda tail: amended(tail, decision(MANY)),
        lambda tail: abandoned(tail, 0, {"orders0": tail.unresolved[0].committables["orders0"][:-1]}, "ann@ops"),
    ],
)
def test_every_entry_that_carries_a_long_decision_is_read_as_it_was_written(later: Callable[[Entry], Entry]) -> None:
    entry = later(parse(serialise(decided(opened(None, "query"), decision(MANY))), "here"))
    assert parse(serialise(entry), "here") == entry


def test_a_read_of_an_entry_takes_the_memory_of_that_entry(tmp_path: Path) -> None:
    """And not that of the longest one, which is 64 MiB: the driver reads an entry in each batch."""
    store = open_store(tmp_path)
    store.put_if_absent(0, b"x" * 100_000)
    tracemalloc.start()
    try:
        assert store.read(0) == b"x" * 100_000
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("most", range(10))
def test_a_file_is_read_in_pieces_up_to_its_end_or_the_most(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "A_READ", 3)
    (tmp_path / "file").write_bytes(b"abcdefg")
    assert disk.LocalFolder(tmp_path).read("file", most) == b"abcdefg"[:most]
