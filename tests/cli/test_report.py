"""The page of a log and a file of events, which loads nothing and runs nothing."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import twopc
from tests.support.browser import browser
from twopc.errors import RoundAborted
from twopc.events import Event
from twopc.log.entries import Decision, abandoned, decided, opened, serialise
from twopc.log.store import open_store
from twopc.observers.json_lines import JsonLinesObserver
from twopc.testing import MemorySink, MemoryTarget

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'>{{ 7 * 7 }}"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of_class(self, name: str) -> int:
        return sum(name in (attributes.get("class") or "").split() for _, attributes in self.found)


class Flushed(JsonLinesObserver):
    """An observer whose events are in the file when they are reported."""

    @twopc.hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        super().twopc_event(event, at)
        self.flush(30.0)


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Path]:
    """A file that an observer writes as long as the test runs."""
    observer = Flushed(tmp_path / "events.jsonl")
    twopc.register_observer(observer)
    yield tmp_path / "events.jsonl"
    twopc.unregister_observer(observer)
    observer.close()


def run(log: Path, batches: range, target: MemoryTarget, owner: str = "orders", fails: Exception | None = None) -> None:
    """One incarnation of a query. It does not stop cleanly."""
    sinks = {"archive": MemorySink(target)}

    def phase_one(round: twopc.Round) -> list[twopc.Vote]:
        if fails:
            raise fails
        with twopc.Participant(sinks, round, partition=0) as participant:
            participant.write("archive", pa.record_batch({"value": ["tea"] * 1234}))
            return [participant.pre_commit()]

    coordinator = twopc.Coordinator(sinks, str(log), owner=owner)
    for batch_id in batches:
        coordinator.run(batch_id, phase_one)


def finished(batch_id: int, owner: str = "orders", at_s: float | None = None) -> dict[str, Any]:
    """A line of an events file. By default, there is a batch every ten seconds."""
    at = datetime(2026, 11, 2, tzinfo=timezone.utc) + timedelta(seconds=batch_id * 10 if at_s is None else at_s)
    batch = twopc.events.BatchFinished(
        batch_id,
        False,
        {"archive": 5},
        {"archive": 99},
        {"archive": 1},
        {"deciding": 2.0, "committing": 7.0},
        0,
        0,
        owner,
    )
    return {"finished_at": at.isoformat(timespec="milliseconds"), **asdict(batch)}


def write_events(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def forge(log: Path) -> None:
    """A log whose every text is hostile, and whose last two entries name nothing that they are about."""
    tail = opened(None, HOSTILE, {HOSTILE: HOSTILE})
    entries = [tail]
    for batch_id in range(2):
        lost = twopc.Committable(f"{HOSTILE}.{batch_id}", {HOSTILE: HOSTILE}, records=3)
        entry = decided(entries[-1], Decision(twopc.Round(1, batch_id), {HOSTILE: (lost,)}))
        entries.append(replace(entry, unresolved=(*entries[-1].unresolved, *entry.unresolved)))
    lost_of_sinks = entries[1].unresolved[0].committables
    entries.append(abandoned(entries[-1], 0, lost_of_sinks, HOSTILE + "\ud800"))
    entries += [replace(entries[-1], kind="decide", unresolved=()), replace(entries[-1], kind="abandon", abandoned=())]
    for slot, entry in enumerate(entries):
        open_store(str(log)).put_if_absent(slot, serialise(entry).replace(b"+00:00", b"+00:00<b onclick=x>"))


@pytest.fixture
def browser_page() -> Iterator[Page]:
    with browser() as started:
        yield started.new_page()


def test_the_page_has_every_batch_and_every_start_with_the_times_of_the_phases(
    tmp_path: Path, events: Path, look: Any
) -> None:
    target = MemoryTarget()
    run(tmp_path / "log", range(2), target)
    run(tmp_path / "log", range(1, 4), target)
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events, "--json")
    page = Elements(tmp_path / "page.html")
    # Four batches, of which one came again; in doubt is the newest, as its commit is written with the next decision.
    assert (done.code, done.json["moments"], page.of_class("batch")) == (1, 7, 5)
    assert page.text.count("archive: 1\N{NO-BREAK SPACE}234 records") == 4
    assert "incarnation 2 opened, and the one before did not stop cleanly; in doubt was batch 1" in page.text
    assert "came again: decided before" in page.text
    told = re.findall(r"([a-z-]+) \d+\.\d ms", page.text)
    assert {phase: told.count(phase) for phase in ("recovering", "pre-committing", "deciding", "committing")} == {
        "recovering": 2,
        "pre-committing": 4,
        "deciding": 4,
        "committing": 4,
    }


@pytest.mark.crash
def test_without_events_the_page_tells_what_the_log_has(shop: Any, tmp_path: Path, look: Any) -> None:
    shop.drive(kill_at="commit 1")
    done = look("report", shop.log, "-o", tmp_path / "page.html")
    page = Elements(tmp_path / "page.html")
    assert (done.code, done.out) == (1, f"{tmp_path / 'page.html'}: 3 moments, 1 in doubt\n")
    assert "Transactions that are decided, and not known to be committed" in page.text
    assert page.of_class("batch") == 2


@pytest.mark.long
def test_a_batch_that_the_log_has_pruned_is_known_by_its_events(tmp_path: Path, events: Path, look: Any) -> None:
    run(tmp_path / "log", range(70), MemoryTarget())
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    assert Elements(tmp_path / "page.html").of_class("batch") == 70


def test_events_of_other_queries_are_left_out_and_lines_that_are_none_are_counted(
    tmp_path: Path, events: Path, look: Any
) -> None:
    run(tmp_path / "log", range(1), MemoryTarget())
    run(tmp_path / "other", range(5), MemoryTarget(), owner="another")
    line = next(line for line in map(json.loads, events.read_text().splitlines()) if "finished_at" in line)
    wrong: list[dict[str, object]] = [
        {"records": {"archive": "many"}},
        {"records": {}},
        {"batch_id": -1},
        {"phases_ms": {"deciding": float("nan")}},
        {"phases_ms": {"deciding": 10**400}},
        {"phases_ms": {HOSTILE: 1}},
        {"phases_ms": 5},
        {"finished_at": None},
    ]
    with events.open("a") as file:
        file.writelines(json.dumps(line | one) + "\n" for one in wrong)
        file.write('{"finished_at": "20\n[]\n' + "[" * 100_000 + "\n")
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    page = Elements(tmp_path / "page.html")
    assert done.code == 1
    assert page.of_class("batch") == 1
    assert f"{len(wrong) + 3} lines of the events file could not be read" in page.text


def test_an_events_file_of_another_query_is_named_as_one(tmp_path: Path, look: Any) -> None:
    run(tmp_path / "log", range(1), MemoryTarget())
    write_events(tmp_path / "events.jsonl", [finished(batch_id, "another") for batch_id in range(3)])
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", tmp_path / "events.jsonl")
    remark = "has no line of query 'orders'. 3 lines are of other queries, such as 'another'."
    assert remark in done.out
    assert remark in Elements(tmp_path / "page.html").text


def test_the_totals_are_those_of_the_log_and_of_the_status(tmp_path: Path, events: Path, look: Any) -> None:
    target = MemoryTarget()
    run(tmp_path / "log", range(4), target)
    run(tmp_path / "log", range(3, 6), target)
    status = look("status", tmp_path / "log", "--json").json
    report = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events, "--json").json
    assert {name: report[name] for name in status if name != "exit_code"} == {
        name: status[name] for name in status if name != "exit_code"
    }
    committables = [
        committable
        for path in sorted((tmp_path / "log").glob("*.json"))
        if (entry := json.loads(path.read_text()))["kind"] == "decide"
        for committable in entry["unresolved"][-1]["sinks"]["archive"]
    ]
    assert report["totals"] == {
        "batches": status["decided"] + 1,
        "records": sum(committable["records"] for committable in committables),
        "bytes": sum(committable["bytes"] for committable in committables),
        "transactions": len(committables),
        "crashes": 1,
        "recoveries": 2,  # the start that found batch 3 in doubt, and batch 3, which came again
        "retries": 0,
        "failed": 0,
    }


def test_a_failed_run_is_shown_with_the_phase_and_the_error(tmp_path: Path, events: Path, look: Any) -> None:
    target = MemoryTarget()
    run(tmp_path / "log", range(2), target)
    with pytest.raises(RoundAborted):
        run(tmp_path / "log", range(2, 3), target, fails=RuntimeError("no <b>disk</b> left"))
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events, "--json")
    page = Elements(tmp_path / "page.html")
    assert done.json["totals"]["failed"] == 1
    assert (page.of_class("run"), page.of_class("failed")) == (1, 1)
    assert "failed while pre-committing: RoundAborted" in page.text
    assert "no <b>disk</b> left" in page.text


def test_a_rest_is_no_crash(tmp_path: Path, look: Any) -> None:
    coordinator = twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(tmp_path / "log"), owner="orders")
    coordinator.run(0, lambda _: [])
    coordinator.rest()
    run(tmp_path / "log", range(1, 2), MemoryTarget())
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--json")
    assert done.json["totals"]["crashes"] == 0
    assert "incarnation 2 opened, after a rest" in Elements(tmp_path / "page.html").text


def test_a_log_of_one_entry_has_a_page(tmp_path: Path, look: Any) -> None:
    open_store(str(tmp_path / "log")).put_if_absent(0, serialise(opened(None, "orders", {})))
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--json")
    assert (done.code, done.json["moments"], done.json["totals"]["batches"]) == (0, 1, 0)
    assert "incarnation 1 opened" in Elements(tmp_path / "page.html").text


@pytest.mark.long
def test_a_long_history_is_drawn_whole_and_the_table_has_its_newest_part(tmp_path: Path, look: Any) -> None:
    run(tmp_path / "log", range(2), MemoryTarget())
    write_events(tmp_path / "events.jsonl", [finished(batch_id) for batch_id in range(10, 20_010)])
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", tmp_path / "events.jsonl")
    page = Elements(tmp_path / "page.html")
    assert done.code == 1
    assert page.of_class("moment") == 500
    assert "19,503 older moments are not shown".replace(",", "\N{NO-BREAK SPACE}") in page.text
    assert sum(tag == "figure" for tag, _ in page.found) == 3
    assert (tmp_path / "page.html").stat().st_size < 1_000_000


def test_a_clock_that_was_set_back_changes_no_order(tmp_path: Path, look: Any) -> None:
    run(tmp_path / "log", range(1), MemoryTarget())
    lines = [finished(batch_id, at_s=batch_id * 10 - (3600 if batch_id > 5 else 0)) for batch_id in range(1, 11)]
    write_events(tmp_path / "events.jsonl", lines)
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", tmp_path / "events.jsonl")
    page = Elements(tmp_path / "page.html")
    rows = [str(a["id"]) for tag, a in page.found if tag == "tr" and "batch" in str(a.get("class")).split()]
    assert rows == [f"batch-{batch_id}" for batch_id in (0, *range(10, 0, -1))]
    assert "The clock was set back after" in page.text


def test_a_batch_of_the_log_keeps_its_place_among_lines_of_a_wrong_clock(
    tmp_path: Path, events: Path, look: Any
) -> None:
    run(tmp_path / "log", range(3), MemoryTarget())
    lines = [line for line in map(json.loads, events.read_text().splitlines()) if "finished_at" in line]
    failed: dict[str, Any] = {"failed_at": "2099-01-01T00:00:00+00:00", "batch_id": 1, "phases_ms": {}}
    failed["error"] = {"kind": "E", "message": ""}
    write_events(events, [lines[0], failed | {"owner": "orders"}, *lines[1:]])
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    classes = [
        str(a["class"]).split() for tag, a in Elements(tmp_path / "page.html").found if tag == "tr" and "id" in a
    ]
    assert ["run" if "run" in found else "batch" if "batch" in found else "note" for found in classes] == [
        *("batch", "batch", "run", "batch", "note")
    ]


def test_the_file_or_the_server_must_be_chosen(tmp_path: Path, look: Any) -> None:
    run(tmp_path / "log", range(1), MemoryTarget())
    assert look("report", tmp_path / "log").code == 2
    assert look("report", tmp_path / "log", "--serve", "-o", tmp_path / "page.html").code == 2
    assert look("report", tmp_path / "log", "--serve", "--json").code == 2
    assert look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--port", 1).code == 2


@pytest.mark.parametrize("wrong", ["events", "output"])
def test_a_file_that_can_not_be_used_is_refused_by_its_name(tmp_path: Path, look: Any, wrong: str) -> None:
    run(tmp_path / "log", range(1), MemoryTarget())
    files = {"output": tmp_path / "page.html", "events": tmp_path / "log" / "00000000000000000000.json"}
    files[wrong] = tmp_path / "nowhere" / "file"
    done = look("report", tmp_path / "log", "-o", files["output"], "--events", files["events"])
    assert done.code == 3
    assert f"{tmp_path}/nowhere/file can't be" in done.err.replace("\n", "")


def test_no_text_of_a_forged_log_becomes_markup(tmp_path: Path, look: Any) -> None:
    forge(tmp_path / "log")
    assert look("report", tmp_path / "log", "-o", tmp_path / "page.html").code == 1
    page = Elements(tmp_path / "page.html")
    assert {tag for tag, _ in page.found} & {"script", "img", "b", "iframe"} == set()
    assert not [name for _, attributes in page.found for name in attributes if name.startswith("on")]
    assert not [attributes for _, attributes in page.found if "src" in attributes]
    assert {href[:1] for _, a in page.found if (href := a.get("href"))} == {"#", "d"}  # within the page, and data:
    assert page.text.count(HOSTILE) >= 5


@pytest.mark.long
def test_a_browser_shows_the_phases_of_each_batch_in_order_and_loads_nothing(
    tmp_path: Path, events: Path, look: Any, browser_page: Page
) -> None:
    run(tmp_path / "log", range(3), MemoryTarget())
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    requests: list[str] = []
    browser_page.on("request", lambda request: requests.append(request.url))
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert browser_page.title() == "twopc: orders"
    assert browser_page.locator("h2#in-doubt").is_visible()
    rows = browser_page.locator("tr.batch")
    assert [rows.nth(n).locator("td").nth(1).inner_text() for n in range(rows.count())] == ["2", "1", "0"]
    bars = [box for bar in rows.first.locator("rect").all() if (box := bar.bounding_box())]
    assert len(bars) == 5
    assert all(one["x"] + one["width"] <= next_["x"] + 1 for one, next_ in itertools.pairwise(bars))
    assert requests == [(tmp_path / "page.html").as_uri()]


@pytest.mark.long
def test_a_browser_shows_what_a_filter_names(tmp_path: Path, events: Path, look: Any, browser_page: Page) -> None:
    target = MemoryTarget()
    run(tmp_path / "log", range(3), target)
    run(tmp_path / "log", range(2, 4), target)
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    browser_page.goto((tmp_path / "page.html").as_uri())
    shown = browser_page.locator("tr.moment:visible")
    assert shown.count() == 7
    for link, count in {"in doubt (1)": 1, "crashes (1)": 1, "recoveries (2)": 2, "failed (0)": 0, "all": 7}.items():
        browser_page.get_by_role("link", name=link, exact=True).click()
        assert shown.count() == count, link
    browser_page.get_by_text("by batch").click()
    browser_page.get_by_role("link", name="2", exact=True).click()
    assert [row.locator("td").nth(1).inner_text() for row in shown.all()] == ["2", "2"]
    browser_page.goto((tmp_path / "page.html").as_uri() + "#batch-1")
    assert shown.count() == 7
    assert browser_page.locator("tr:target td").nth(1).inner_text() == "1"


@pytest.mark.long
@pytest.mark.parametrize("is_forged", [False, True])
def test_a_page_on_a_telephone_does_not_scroll_sideways(
    tmp_path: Path, events: Path, look: Any, browser_page: Page, is_forged: bool
) -> None:
    if is_forged:
        forge(tmp_path / "log")
    else:
        run(tmp_path / "log", range(3), MemoryTarget())
    look("report", tmp_path / "log", "-o", tmp_path / "page.html", *([] if is_forged else ["--events", events]))
    browser_page.set_viewport_size({"width": 390, "height": 844})
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert browser_page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.long
def test_a_browser_runs_nothing_of_a_forged_log(tmp_path: Path, look: Any, browser_page: Page) -> None:
    forge(tmp_path / "log")
    look("report", tmp_path / "log", "-o", tmp_path / "page.html")
    ran: list[str] = []
    browser_page.on("dialog", lambda dialog: ran.append(dialog.message))
    browser_page.on("console", lambda message: ran.append(message.text))
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert browser_page.locator("h1").inner_text() == f"Query {HOSTILE}"
    assert ran == []
