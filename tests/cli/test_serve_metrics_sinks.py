"""``twopc serve-metrics --sinks``: what target systems have open, and that nothing there is changed."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import twopc
from tests.cli.conftest import Clock
from tests.support.commit_log import CommitLog
from tests.support.exporter import Exporter
from tests.support.memory_log import MemoryLog
from twopc import OpenTransactions
from twopc.cli.readings import WatchedLog, WatchedSink
from twopc.log import history
from twopc.testing import MemorySink, MemoryTarget
from twopc_kafka_broker import KafkaBroker


class HeldSink(MemorySink):
    """A sink whose readers are held back where a test says."""

    positions: Mapping[str, int] | None = None

    def open_transactions(self) -> OpenTransactions:
        return OpenTransactions(0, held_back=type(self).positions)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    found = MemoryLog()
    monkeypatch.setattr(history, "store_of", lambda url: found)
    return found


@pytest.fixture
def log(store: MemoryLog) -> WatchedLog:
    """A log that was read, of a query with one sink."""
    CommitLog.open(store, "query", {"a": "twopc"})
    found = WatchedLog("memory")
    found.read()
    return found


def test_readers_are_held_back_for_as_long_as_a_position_stays(log: WatchedLog) -> None:
    clock = Clock()
    sink = WatchedSink("a", HeldSink(MemoryTarget()), log, clock)

    def held_back_s(after_s: float, **positions: int) -> float | None:
        clock.s += after_s
        HeldSink.positions = positions
        sink.read()
        assert sink.reading
        return sink.reading.held_back_s

    assert held_back_s(0) == 0
    assert held_back_s(10, p0=5) == 0
    assert held_back_s(10, p0=5, p1=7) == 10
    assert held_back_s(10, p0=6, p1=7) == 10  # the first goes on, with the next batch
    assert held_back_s(10, p1=7) == 20
    assert held_back_s(10) == 0


def test_a_reading_that_fails_leaves_the_time_of_the_one_before(
    log: WatchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sink = WatchedSink("a", MemorySink(MemoryTarget()), log, clock)
    sink.read()
    read_at_s, clock.s = clock.s, clock.s + 400
    monkeypatch.delattr(MemorySink, "recover")
    sink.read()
    assert not sink.is_up
    assert sink.reading
    assert sink.reading.at_s == read_at_s


def test_a_sink_that_knows_of_no_readers_has_no_such_value(log: WatchedLog) -> None:
    sink = WatchedSink("a", MemorySink(MemoryTarget()), log)
    sink.read()
    assert sink.reading
    assert sink.reading.held_back_s is None
    assert sink.reading.open == OpenTransactions(0)


@pytest.mark.parametrize(("name", "prefix"), [("b", "twopc"), ("a", "other")])
def test_a_sink_that_is_not_the_logs_is_an_error_and_no_zero(log: WatchedLog, name: str, prefix: str) -> None:
    given = MemorySink(MemoryTarget())
    given.prefix = prefix
    sink = WatchedSink(name, given, log)
    sink.read()
    assert not sink.is_up
    assert sink.reading is None
    assert sink.problem
    assert f"has a sink {name!r} whose transactions start with {prefix!r}, and the log knows a with" in sink.problem


def test_a_sink_follows_its_log_when_another_replaces_it(store: MemoryLog) -> None:
    log = WatchedLog("memory")
    log.read()
    sink = WatchedSink("a", MemorySink(MemoryTarget()), log)
    sink.read()
    assert sink.is_up  # no log yet
    for owner in ("one", "two"):
        store.entries.clear()
        CommitLog.open(store, owner, {"a": "twopc"})
        log.read()
        sink.read()
        assert sink.reading
        assert sink.reading.owner == owner


@pytest.mark.crash
def test_open_files_are_those_that_a_dry_run_of_resolve_lists(shop: Any, look: Any) -> None:
    shop.drive(kill_at="committing")
    listed = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json").json["plan"]
    before = shop.snapshot()
    with Exporter(shop.log, "--sinks", shop.sinks) as exporter:
        exporter.wait_for("twopc_open_transactions", sum(each["open"] for each in listed), sink="archive")
        assert exporter.value("twopc_sink_up", sink="archive") == 1
    assert shop.snapshot() == before
    assert listed


@pytest.mark.long
@pytest.mark.crash
def test_kafkas_open_transactions_have_an_age_and_a_timeout_and_hold_readers_back(
    quick_broker: KafkaBroker, make_kafka_shop: Any, wait: Any
) -> None:
    shop = make_kafka_shop(quick_broker, with_files=False)
    started_s = time.monotonic()
    shop.drive(kill_at="committing")
    with Exporter(shop.log, "--sinks", shop.sinks) as exporter:

        def value(name: str) -> float:
            return exporter.value(name, sink="orders") or 0.0

        wait("transactions are open", lambda: value("twopc_open_transactions") > 0)
        assert 0 < value("twopc_oldest_transaction_seconds") < time.monotonic() - started_s
        assert value("twopc_transaction_timeout_seconds") == 900
        wait("readers are held back", lambda: value("twopc_held_back_seconds") > 1)
        assert shop.holds_readers_back()
        shop.drive()  # nobody has fenced it, nor ended its transactions
        exporter.wait_for("twopc_open_transactions", 0, sink="orders")
        exporter.wait_for("twopc_held_back_seconds", 0, sink="orders")
        assert exporter.value("twopc_oldest_transaction_seconds", sink="orders") == 0
        exporter.wait_for("twopc_oldest_in_doubt_seconds", 0)
    assert shop.records() == sorted(set(shop.records()))


def test_a_target_system_that_does_not_answer_is_a_metric(tmp_path: Path, silent: str) -> None:
    sink = MemorySink(MemoryTarget())
    with twopc.Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query") as coordinator:
        coordinator.run(0, lambda _: [])
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(f'[orders]\nbackend = "kafka"\n"bootstrap.servers" = "{silent}"\ntopic = "orders"\n')
    with Exporter(tmp_path / "log", "--sinks", sinks) as exporter:
        exporter.wait_for("twopc_sink_up", 0, sink="orders")
        exporter.wait_for("twopc_log_batch_id", 0)
        assert exporter.value("twopc_open_transactions", sink="orders") is None


def test_the_sinks_of_one_query_need_one_log(tmp_path: Path, run: Any) -> None:
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(f'[archive]\nbackend = "files"\npath = "{tmp_path}"\n')
    done = run("serve-metrics", tmp_path / "a", tmp_path / "b", "--sinks", sinks)
    assert done.code == 3
    assert "give one LOG" in done.err


@pytest.mark.long
def test_secrets_of_the_sinks_file_are_neither_served_nor_printed(tmp_path: Path, silent: str) -> None:
    sinks = tmp_path / "sinks.toml"
    secret = tmp_path / "secret"
    secret.write_text("hidden-word")
    sinks.write_text(
        f'[orders]\nbackend = "postgres"\ntable = "t"\n'
        f'conninfo = "host=127.0.0.1 port={silent.split(":")[1]} connect_timeout=2 password=${{file:{secret}}}"\n'
    )
    with twopc.Coordinator({"orders": MemorySink(MemoryTarget())}, str(tmp_path / "log"), owner="q") as coordinator:
        coordinator.run(0, lambda _: [])
    with Exporter(tmp_path / "log", "--sinks", sinks) as exporter:
        exporter.wait_for("twopc_sink_up", 0, sink="orders")
        said = exporter.hear("sink orders: can't be read")
        served = str(exporter.scrape())
    assert "hidden-word" not in exporter.said + said + served
