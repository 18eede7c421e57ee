"""What `twopc status` and an alert show of a query that waits, or was killed."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.commit_log import CommitLog
from tests.support.exporter import Exporter, age
from tests.support.pages import DOCS
from tests.support.prometheus import Prometheus, program
from twopc.cli.exporter import ReadingsCollector
from twopc.cli.readings import WatchedLog
from twopc.events import CallRetried
from twopc.log import notices
from twopc.log.entries import Repetition
from twopc.log.store import open_store


def test_status_tells_an_operator_what_has_waited_for_a_minute_until_the_log_goes_on(tmp_path: Path, look: Any) -> None:
    store = open_store(str(tmp_path))
    log = CommitLog.open(store, "orders")
    event = CallRetried("batch 3 is decided; commit of x", 20, 5.0, "topic orders-7 has no leader", waited_s=75.4)
    notices.Notices(store).post(log.tail, event)

    table = look("status", tmp_path).out
    assert "Needs an operator: batch 3 is decided; commit of x: no answer for 75 s" in table
    assert "topic orders-7 has no leader" in table
    document = look("status", tmp_path, "--json").json
    assert document["waits_for"]["waited_s"] == 75.4

    log.complete()
    assert "Needs an operator" not in look("status", tmp_path).out


@pytest.mark.parametrize(
    "wrong", [{"waited_s": "long"}, {"waited_s": None}, {"what": 7}, {"reason": []}, {"at": {}}, {"entry_id": "older"}]
)
def test_a_notice_that_is_damaged_or_of_another_entry_is_none_and_disturbs_neither_status_nor_a_scrape(
    tmp_path: Path, look: Any, wrong: dict[str, object]
) -> None:
    store = open_store(str(tmp_path))
    log = CommitLog.open(store, "orders")
    whole = asdict(notices.Notice(log.tail.entry_id, "commit of x", "no leader", 75.4, "noon"))
    for posted, shown in (whole, 75.4), (whole | wrong, 0.0):
        store.post(json.dumps(posted).encode())
        assert ("Needs an operator" in look("status", tmp_path).out) is bool(shown)
        watched = WatchedLog(str(tmp_path))
        watched.read()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ReadingsCollector([watched]))
        labels = {"log": str(tmp_path), "owner": "orders"}
        assert registry.get_sample_value("twopc_log_unanswered_seconds", labels) == shown
        assert generate_latest(registry)


@pytest.mark.parametrize("owner", ["half \ud800", "red \x1b[31m"])
def test_status_shows_what_no_terminal_takes_as_its_code(tmp_path: Path, run: Any, owner: str) -> None:
    CommitLog.open(open_store(str(tmp_path)), owner)
    done = run("status", tmp_path)
    assert done.code == 0
    assert owner.encode(errors="backslashreplace").decode().replace("\x1b", "\\x1b") in done.out


def test_status_names_what_usually_passes(tmp_path: Path, look: Any) -> None:
    store = open_store(str(tmp_path))
    log = CommitLog.open(store, "orders")
    notices.Notices(store).note(log.tail, Repetition(9, "2026-11-29T00:00:00.000+00:00", 3, "in doubt"))
    shown = look("status", tmp_path).out
    assert "Batch 3 has failed in 9 different minutes since" in shown.replace("\n", " ")
    assert "the log can be read but does not confirm appends." in shown.replace("\n", " ")
    document = look("status", tmp_path, "--json").json
    assert document["repetition"]["way"] == "in doubt"


def test_status_shows_a_failure_that_came_again_until_a_batch_is_decided(tmp_path: Path, look: Any) -> None:
    store = open_store(str(tmp_path))
    log = CommitLog.open(store, "orders")
    assert "in the same way" not in look("status", tmp_path).out
    since = "2026-11-29T00:00:00.000+00:00"
    notices.Notices(store).note(log.tail, Repetition(2, since, 3, "5f3c"))
    for _ in range(2):  # from the note, then from the entry that has taken it over
        shown = look("status", tmp_path).out
        assert f"Batch 3 has failed 2 times in the same way since {since}." in shown
        document = look("status", tmp_path, "--json").json
        assert (document["repetition"]["count"], document["repetition"]["batch_id"]) == (2, 3)
        CommitLog.open(store, "orders")
        store.post(b"")


ALERT = "TwopcBatchInDoubt"
AGE = 'twopc_oldest_in_doubt_seconds{owner="shop"}'


@pytest.mark.long
@pytest.mark.crash
def test_the_alert_of_a_killed_query_ends_when_the_query_is_started_again(shop: Any, tmp_path: Path, wait: Any) -> None:
    program("prometheus")
    rules = DOCS / "monitoring" / "alerts.yml"
    shop = replace(shop, wrecks=None)  # a kept one may be older than a minute
    shop.drive(kill_at="committing")

    def watched(exporter: Exporter, name: str) -> Prometheus:
        return Prometheus(tmp_path / name, exporter.url.split("/")[2], rules)

    with Exporter(shop.log) as exporter, watched(exporter, "at once") as prometheus:
        wait("the batch is in doubt", lambda: prometheus.ask(f"{AGE} > 0"))
        assert prometheus.ask(f"{AGE} < 60")
        assert prometheus.firing() == set()
    age(shop.log, 90)
    with Exporter(shop.log) as exporter, watched(exporter, "later") as prometheus:
        wait("the alert is raised", lambda: ALERT in prometheus.firing())
        [before_s] = prometheus.ask(AGE)
        wait("its age rises", lambda: prometheus.ask(f"{AGE} > {before_s + 1}"))
        shop.drive()
        wait("nothing is in doubt", lambda: prometheus.ask(AGE) == [0])
        wait("the alert has ended", lambda: prometheus.firing() == set())
