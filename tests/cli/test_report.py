"""The page of a log and a file of events, which loads nothing and runs nothing."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import twopc
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


def run(log: Path, batches: range, target: MemoryTarget, owner: str = "orders") -> None:
    """One incarnation of a query. It does not stop cleanly."""
    sinks = {"archive": MemorySink(target)}

    def phase_one(round: twopc.Round) -> list[twopc.Vote]:
        with twopc.Participant(sinks, round, partition=0) as participant:
            participant.write("archive", pa.record_batch({"value": ["tea"] * 1234}))
            return [participant.pre_commit()]

    coordinator = twopc.Coordinator(sinks, str(log), owner=owner)
    for batch_id in batches:
        coordinator.run(batch_id, phase_one)


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
    browser_on_path = ["chromium", "chromium-browser", "google-chrome", "chrome"]
    found = next(filter(None, map(shutil.which, browser_on_path)), None)
    if found is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(browser_on_path)} is on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=found) as browser:
        yield browser.new_page()


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
    assert "In doubt: decided, and not known to be committed" in page.text
    assert page.of_class("batch") == 2


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
        {"more": 1},
    ]
    with events.open("a") as file:
        file.writelines(json.dumps(line | one) + "\n" for one in wrong)
        file.write('{"finished_at": "20\n[]\n' + "[" * 100_000 + "\n")
    done = look("report", tmp_path / "log", "-o", tmp_path / "page.html", "--events", events)
    page = Elements(tmp_path / "page.html")
    assert done.code == 1
    assert page.of_class("batch") == 1
    assert f"{len(wrong) + 3} lines of the events file could not be read" in page.text


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
    assert [a for _, a in page.found if "src" in a or "href" in a] == [{"rel": "icon", "href": "data:,"}]
    assert page.text.count(HOSTILE) >= 5


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


def test_a_browser_runs_nothing_of_a_forged_log(tmp_path: Path, look: Any, browser_page: Page) -> None:
    forge(tmp_path / "log")
    look("report", tmp_path / "log", "-o", tmp_path / "page.html")
    ran: list[str] = []
    browser_page.on("dialog", lambda dialog: ran.append(dialog.message))
    browser_page.on("console", lambda message: ran.append(message.text))
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert browser_page.locator("h1").inner_text() == f"Query {HOSTILE}"
    assert ran == []
