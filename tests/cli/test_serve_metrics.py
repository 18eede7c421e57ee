"""``twopc serve-metrics``: the values, and logs that are absent, replaced, slow, many or of another clock."""

import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import twopc
from tests.cli.conftest import Clock
from tests.support.commit_log import CommitLog
from tests.support.exporter import Exporter, Sample, samples
from tests.support.memory_log import MemoryLog
from twopc.cli.exporter import METRICS, ReadingsCollector
from twopc.cli.readings import WatchedLog, WatchedSink, usual_in_doubt_s
from twopc.errors import ConfigurationError
from twopc.log import entries, history
from twopc.log.entries import Decision
from twopc.log.entry_json import parse, serialise
from twopc.log.history import FollowedLog, NoLog
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Committable
from twopc.transactional_ids import Round


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the process that writes the log."""
    found = Clock()
    monkeypatch.setattr(entries, "_now", lambda: found.text)
    return found


class CountingLog(MemoryLog):
    """A log that counts what is read, runs ``before_read`` before each, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.read_slots: list[int] = []
        self.before_read: Callable[[], object] = lambda: None
        self.away: Exception | None = None

    def slots(self) -> list[int]:
        if self.away:
            raise self.away
        return super().slots()

    def read(self, slot: int) -> bytes:
        self.read_slots.append(slot)
        self.before_read()
        return super().read(slot)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingLog:
    found = CountingLog()
    monkeypatch.setattr(history, "store_of", lambda url: found)
    return found


class MonitoredSink(MemorySink):
    """A sink whose target system reports all that one can."""

    def open_transactions(self) -> twopc.OpenTransactions:
        return twopc.OpenTransactions(1, oldest_s=2.0, timeout_s=3.0, held_back={})


def begun(store: MemoryLog) -> CommitLog:
    return CommitLog.open(store, "query", {"orders": "twopc"})


def read_log(clock: Clock) -> WatchedLog:
    """Return the log as a first reading has found it."""
    log = WatchedLog("memory", clock)
    log.read()
    return log


def decide(log: CommitLog, batch_id: int, transactions: int = 2) -> None:
    decided = tuple(Committable(f"t{batch_id}.{n}", {}, records=1) for n in range(transactions))
    log.decide(Decision(Round(log.incarnation, batch_id), {"orders": decided}))


def scraped(*logs: WatchedLog) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingsCollector(logs))
    return {str(each): each.value for each in samples(generate_latest(registry).decode())}


def of(name: str, log: str = "memory", owner: str = "query", **more: str) -> str:
    return str(Sample(name, {"log": log, "owner": owner, **more}, 0))


# The values. --------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_the_values_are_those_of_twopc_status(shop: Any, look: Any) -> None:
    shop.drive(kill_at="committing")
    status = look("status", shop.log, "--json").json
    with Exporter(shop.log) as exporter:
        exporter.wait_for("twopc_log_batch_id", status["decided"])
        values = {each.name: each.value for each in exporter.scrape() if each.labels.get("owner") == status["owner"]}
        entries = exporter.value("twopc_log_entries", log=str(shop.log))
    [in_doubt] = status["in_doubt"]
    assert values["twopc_in_doubt_transactions"] == in_doubt["sinks"]["archive"]["transactions"] > 0
    assert values["twopc_log_incarnation"] == status["incarnation"]
    assert values["twopc_log_clean_stop"] == status["clean_stop"]
    assert entries == status["entries"]
    assert values["twopc_abandoned_transactions"] == len(status["abandoned"])
    assert values["twopc_log_unanswered_seconds"] == 0
    assert status["waits_for"] is None
    written_s = datetime.fromisoformat(status["written_at"]).timestamp()
    assert values["twopc_log_last_entry_timestamp_seconds"] == pytest.approx(written_s)
    since_s = datetime.fromisoformat(in_doubt["since"]).timestamp()
    assert values["twopc_oldest_in_doubt_seconds"] == pytest.approx(time.time() - since_s, abs=10)
    assert values["twopc_log_bytes"] == sum(path.stat().st_size for path in shop.log.glob("0*.json"))


@pytest.mark.crash
def test_a_killed_query_is_in_doubt_for_longer_and_longer_until_it_is_started_again(shop: Any, wait: Any) -> None:
    shop.drive(kill_at="committing")
    with Exporter(shop.log) as exporter:

        def in_doubt_s() -> float:
            return exporter.value("twopc_oldest_in_doubt_seconds", log=str(shop.log)) or 0.0

        wait("it is in doubt", lambda: in_doubt_s() > 0)
        before_s = in_doubt_s()
        wait("it is in doubt for longer", lambda: in_doubt_s() > before_s + 0.5)
        shop.drive()
        exporter.wait_for("twopc_oldest_in_doubt_seconds", 0)
        assert exporter.value("twopc_in_doubt_transactions", sink="archive") == 0


def test_each_metric_has_the_labels_that_are_declared(store: CountingLog, clock: Clock) -> None:
    decide(begun(store), 0)
    log = read_log(clock)
    sink = WatchedSink("orders", MonitoredSink(MemoryTarget()), log, clock)
    sink.read()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingsCollector([log, sink]))
    seen = {each.name: sorted(each.labels) for each in samples(generate_latest(registry).decode())}
    assert seen == {name: sorted(labels) for name, _, labels in METRICS}


def test_a_sink_with_nothing_in_doubt_has_a_zero_and_not_a_gap(store: CountingLog, clock: Clock) -> None:
    writer = CommitLog.open(store, "query", {"orders": "twopc", "archive": "twopc"})
    decide(writer, 0)
    log = read_log(clock)
    assert scraped(log)[of("twopc_in_doubt_transactions", sink="orders")] == 2
    assert scraped(log)[of("twopc_in_doubt_transactions", sink="archive")] == 0
    writer.complete()
    log.read()
    assert scraped(log)[of("twopc_in_doubt_transactions", sink="orders")] == 0


def test_what_was_given_up_is_counted(store: CountingLog, clock: Clock) -> None:
    writer = begun(store)
    decide(writer, 0)
    writer.abandon(0, {"orders": [Committable("t0.1", {}, records=1)]}, "ann")
    log = read_log(clock)
    assert scraped(log)[of("twopc_abandoned_transactions", sink="orders")] == 1
    assert scraped(log)[of("twopc_in_doubt_transactions", sink="orders")] == 1


# How long a batch has been in doubt. --------------------------------------------------------------------------------


def test_the_age_in_doubt_is_that_of_the_decision(store: CountingLog, clock: Clock) -> None:
    decide(begun(store), 0)
    clock.s += 75
    begun(store)  # which carries the decision on
    clock.s += 25
    log = read_log(clock)
    assert scraped(log)[of("twopc_oldest_in_doubt_seconds")] == 100


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_writer_with_another_clock_neither_hides_a_doubt_nor_makes_one_up(
    store: CountingLog, clock: Clock, ahead_s: float
) -> None:
    ours = Clock()
    clock.s += ahead_s
    writer = begun(store)
    log = WatchedLog("memory", ours)
    log.read()
    ours.s += 15
    decide(writer, 0)
    log.read()
    age_s = scraped(log)[of("twopc_oldest_in_doubt_seconds")]
    assert 0 <= age_s <= 15
    for waited_s in (15, 85):
        ours.s += waited_s
        log.read()
    assert age_s + 100 == scraped(log)[of("twopc_oldest_in_doubt_seconds")]
    writer.complete()
    log.read()
    assert scraped(log)[of("twopc_oldest_in_doubt_seconds")] == 0


def test_the_usual_time_in_doubt_is_that_between_decisions_of_one_incarnation(store: CountingLog, clock: Clock) -> None:
    writer = begun(store)
    for batch_id, took_s in enumerate((300, 300, 310, 900, 300)):
        decide(writer, batch_id)
        clock.s += took_s
    decide(writer, 5)
    clock.s += 40_000  # an outage, which says nothing about batches
    writer = begun(store)
    decide(writer, 6)
    log = read_log(clock)
    assert scraped(log)[of("twopc_usual_in_doubt_seconds")] == 300


def test_a_log_without_a_committed_batch_has_no_usual_time(store: CountingLog, clock: Clock) -> None:
    writer = begun(store)
    assert usual_in_doubt_s([writer.tail]) == 0


# Logs that are absent, replaced, unreadable. ------------------------------------------------------------------------


def test_a_log_that_no_query_has_begun_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Exporter(log) as exporter:
        exporter.wait_for("twopc_log_entries", 0)
        assert exporter.value("twopc_log_up") == 1
        assert exporter.value("twopc_log_batch_id") is None
        assert not log.exists()
        with twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(log), owner="query") as coordinator:
            coordinator.run(0, lambda _: [])
        exporter.wait_for("twopc_log_batch_id", 0, owner="query")


def test_a_log_that_another_replaces_has_only_the_new_ones_series(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def begin(owner: str, batches: int) -> None:
        coordinator = twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(log), owner=owner)
        for batch_id in range(batches):
            coordinator.run(batch_id, lambda _: [])
        coordinator.close()

    begin("one", 5)
    with Exporter(log) as exporter:
        exporter.wait_for("twopc_log_batch_id", 4, owner="one")
        shutil.rmtree(log)
        exporter.wait_for("twopc_log_entries", 0)
        assert exporter.value("twopc_log_batch_id") is None
        begin("two", 5)  # entries of the same numbers
        exporter.wait_for("twopc_log_batch_id", 4, owner="two")
        assert {each.labels.get("owner", "two") for each in exporter.scrape()} == {"two"}


def test_an_older_copy_with_other_entries_of_the_same_numbers_is_read_as_it_is(
    store: CountingLog, clock: Clock
) -> None:
    writer = begun(store)
    for batch_id in range(3):
        decide(writer, batch_id)
    log = FollowedLog("memory")
    assert log.read().tail.decided == 2
    copy = {slot: store.entries[slot] for slot in (0, 1)}
    store.entries = copy
    again = begun(store)  # in slot 2, where batch 1 was decided
    decide(again, 1)
    decide(again, 2)
    found = log.read()
    assert [entry.kind for entry in found.entries] == ["open", "decide", "open", "decide", "decide"]
    assert found.tail.entry_id == again.tail.entry_id


def test_what_was_read_last_stays_while_a_log_cant_be_read(store: CountingLog, clock: Clock) -> None:
    decide(begun(store), 0)
    clock.s += 100
    log = read_log(clock)
    read_at_s = clock.s
    store.away = OSError(5, "the disk")
    clock.s += 500
    log.read()
    values = scraped(log)
    assert values['twopc_log_up{log="memory"}'] == 0
    assert values['twopc_log_read_timestamp_seconds{log="memory"}'] == read_at_s
    assert values[of("twopc_oldest_in_doubt_seconds")] == 100  # an alert that was raised does not end
    store.away = None
    log.read()
    assert scraped(log)['twopc_log_up{log="memory"}'] == 1
    assert scraped(log)[of("twopc_oldest_in_doubt_seconds")] == 600


@pytest.mark.parametrize("damage", [b"{", b"[]"], ids=["cut off", "foreign"])
def test_a_damaged_log_is_a_metric_and_no_crash(store: CountingLog, clock: Clock, damage: bytes) -> None:
    begun(store)
    store.entries[1] = damage
    log = read_log(clock)
    assert scraped(log) == {'twopc_log_up{log="memory"}': 0}
    assert log.problem
    assert "CorruptLog" in log.problem


def test_an_entry_whose_time_is_none_is_damage(store: CountingLog, clock: Clock) -> None:
    writer = begun(store)
    store.entries[0] = serialise(parse(store.entries[0], "here")).replace(writer.tail.written_at.encode(), b"noon")
    log = read_log(clock)
    assert log.problem
    assert "'noon' as its time" in log.problem


# What a reading costs. ----------------------------------------------------------------------------------------------


def test_a_reading_reads_only_what_is_new(store: CountingLog, clock: Clock) -> None:
    writer = begun(store)
    for batch_id in range(10):
        decide(writer, batch_id)
    log = FollowedLog("memory")
    log.read()
    store.read_slots.clear()
    log.read()
    assert store.read_slots == [10]
    decide(writer, 10)
    decide(writer, 11)
    store.read_slots.clear()
    assert len(log.read().entries) == 13
    assert sorted(store.read_slots) == [10, 11, 12, *store.read_slots[3:]]
    assert len(store.read_slots) == 3


def test_entries_that_are_pruned_between_the_listing_and_the_reading_are_left_out(
    store: CountingLog, clock: Clock
) -> None:
    writer = begun(store)
    for batch_id in range(20):
        decide(writer, batch_id)

    def go_on() -> None:
        store.before_read = lambda: None  # the writer reads, too
        assert writer.tail.decided is not None
        decide(writer, writer.tail.decided + 1)
        store.delete(min(store.entries))
        store.before_read = go_on

    store.before_read = go_on  # each listing is out of date before the last of its entries is read
    found = FollowedLog("memory").read()
    assert len(found.entries) < 21
    assert found.tail.decided == 19


@pytest.mark.parametrize("times", [history.ATTEMPTS - 1, history.ATTEMPTS])
def test_a_log_that_changes_at_each_look_is_looked_at_a_few_times(store: CountingLog, clock: Clock, times: int) -> None:
    begun(store)
    looks = iter(range(times))

    def change() -> None:
        for _ in looks:
            raise FileNotFoundError

    store.before_read = change
    if times < history.ATTEMPTS:
        assert FollowedLog("memory").read().tail.owner == "query"
    else:
        with pytest.raises(ConfigurationError, match=r"changes while it is read\. Try again\."):
            FollowedLog("memory").read()


def test_a_query_that_decides_faster_than_its_log_is_read_is_read_all_the_same(
    store: CountingLog, clock: Clock
) -> None:
    writer = begun(store)
    decide(writer, 0)
    log = FollowedLog("memory")
    log.read()
    for batch_id in range(1, 200):
        decide(writer, batch_id)
    assert log.read().tail.decided == 199
    assert min(store.entries) > 1  # what was read first is pruned


def test_a_log_that_is_gone_is_forgotten(store: CountingLog, clock: Clock) -> None:
    decide(begun(store), 0)
    log = FollowedLog("memory")
    log.read()
    store.entries = {}
    with pytest.raises(NoLog):
        log.read()
    CommitLog.open(store, "other", {"orders": "twopc"})
    assert log.read().tail.owner == "other"


def test_a_store_that_does_not_answer_holds_up_neither_a_scrape_nor_another_log(
    store: CountingLog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    begun(store)
    other = MemoryLog()
    other.url = "other"
    CommitLog.open(other, "query", {"orders": "twopc"})
    answers = threading.Event()
    store.before_read = answers.wait
    stuck = WatchedLog("memory", clock)
    monkeypatch.setattr(history, "store_of", lambda url: other)
    quick = WatchedLog("other", clock)
    ends = [log.follow(0.01, lambda line: None) for log in (stuck, quick)]
    wait("the quick one is read", lambda: quick.is_up)
    assert store.read_slots  # it waits
    values = scraped(stuck, quick)
    assert values['twopc_log_up{log="memory"}'] == 0
    assert values['twopc_log_up{log="other"}'] == 1
    answers.set()
    wait("the slow one is read, too", lambda: stuck.is_up)
    for end in ends:
        end()


@pytest.mark.long
def test_two_hundred_logs_are_read_and_served(tmp_path: Path, wait: Any) -> None:
    first = tmp_path / "0"
    with twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(first), owner="query") as coordinator:
        for batch_id in range(40):
            coordinator.run(batch_id, lambda _: [])
    logs = [first, *(Path(shutil.copytree(first, tmp_path / str(n))) for n in range(1, 200))]
    with Exporter(*logs, interval_s=1) as exporter:
        wait(
            "all are read",
            lambda: sum(each.value for each in exporter.scrape() if each.name == "twopc_log_batch_id") == 200 * 39,
        )
        started = time.monotonic()
        assert len([each for each in exporter.scrape() if each.name == "twopc_log_up"]) == 200
        assert time.monotonic() - started < 5


def test_logs_are_not_read_all_at_once(tmp_path: Path) -> None:
    with Exporter(tmp_path / "a", tmp_path / "b", interval_s=120) as exporter:
        exporter.wait_for("twopc_log_up", 1, log=str(tmp_path / "a"))
        assert exporter.value("twopc_log_up", log=str(tmp_path / "b")) == 0


# The command. -------------------------------------------------------------------------------------------------------


def test_it_reports_what_it_serves_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with Exporter(tmp_path / "log") as exporter:
        assert re.fullmatch(
            r"twopc: serving http://127\.0\.0\.1:\d+/metrics: 1 logs, read every 0\.05 s\n", exporter.said
        )
        exporter.hear(f"twopc: {tmp_path / 'log'}: no log is there yet\n")
        code, said = exporter.interrupt()
    assert (code, said) == (130, "twopc: KeyboardInterrupt: interrupted\n")


def test_it_ends_when_a_supervisor_stops_it(tmp_path: Path) -> None:
    with Exporter(tmp_path / "log") as exporter:
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(30) == 0


def test_a_log_that_becomes_unreadable_is_reported_once(store: CountingLog, clock: Clock, wait: Any) -> None:
    begun(store)
    said: list[str] = []
    end = WatchedLog("memory", clock).follow(0.01, said.append)
    wait("it is read", lambda: said == ["memory: the log of query query"])
    store.away = OSError(5, "the disk")
    wait("it is reported", lambda: len(said) == 2)
    assert said[1].startswith("memory: can't be read: ConfigurationError: the commit log at memory can't be read")
    store.away = None
    wait("it is reported again", lambda: len(said) == 3)
    end()


def test_a_log_is_read_on_although_what_is_reported_cant_be_written(
    store: CountingLog, clock: Clock, wait: Any
) -> None:
    tried: list[str] = []

    def say(line: str) -> None:
        tried.append(line)
        raise OSError(28, "No space left on device")

    watched = WatchedLog("memory", clock)
    end = watched.follow(0.01, say)
    wait("it is reported", lambda: tried)
    begun(store)
    wait("it is read again", lambda: watched.reading and watched.reading.history)
    end()


@pytest.mark.parametrize("owner", ["half \ud800", "bytes \udce9"])
def test_a_name_that_is_no_text_does_not_take_the_others_away(store: CountingLog, clock: Clock, owner: str) -> None:
    CommitLog.open(store, owner, {"orders": "twopc"})
    log = read_log(clock)
    assert scraped(log)[of("twopc_log_incarnation", owner=owner.encode(errors="replace").decode())] == 1


def test_a_port_in_use_is_refused(tmp_path: Path, run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        done = run("serve-metrics", tmp_path / "log", "--port", taken)
    assert done.code == 3
    assert f"metrics can't be served at 127.0.0.1:{taken}: Address already in use. Name another --port" in done.err


@pytest.mark.variants
@pytest.mark.parametrize(
    ("logs", "why"),
    [
        (["ftp://host/log"], "a commit log can't be kept at ftp://"),
        (["postgresql://ops:hidden-word@127.0.0.1/db/log"], "password"),
        (["s3://key:hidden-word@bucket/log"], "holds a password"),
        (["abfs://c@a.dfs.core.windows.net/log?sig=hidden-word"], "holds a password"),
        (["postgresql://127.0.0.1/db/log", "postgresql://127.0.0.1/db/log?connect_timeout=3"], "2 LOGs are the same"),
    ],
)
def test_bad_input_is_refused_before_anything_is_served(logs: list[str], why: str, run: Any) -> None:
    done = run("serve-metrics", *logs, "--port", 0)
    assert done.code == 3
    assert why in done.err
    assert "serving" not in done.err
    assert "hidden-word" not in done.err + done.out


def test_a_log_that_is_given_twice_is_served_once(tmp_path: Path) -> None:
    with Exporter(tmp_path / "log", tmp_path / "log") as exporter:
        exporter.wait_for("twopc_log_up", 1)


def test_it_needs_a_log(run: Any) -> None:
    assert run("serve-metrics").code == 2


def test_without_the_extra_it_names_it(tmp_path: Path, run: Any) -> None:
    hidden = tmp_path / "prometheus_client.py"
    hidden.write_text("raise ModuleNotFoundError(name='prometheus_client')")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = run("serve-metrics", tmp_path / "log", PYTHONPATH=path)
    assert done.code == 3
    assert "serve-metrics needs prometheus_client: pip install 'twopc-core[cli,prometheus]'" in done.err
