"""``twopc checkpoint`` shows how a checkpoint differs from its log, and repairs the checkpoint from the log."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import click
import fsspec
import pytest

from tests.cli.conftest import Done
from tests.unit.test_checkpoint_repair import Query
from twopc.exit_codes import ExitCode
from twopc.log.entries import Decision, closed, decided
from twopc.log.entry_json import serialise
from twopc.log.store import open_store
from twopc.transactional_ids import Round

Look: TypeAlias = "Callable[..., Done]"


class Case(Query):
    """A query whose log is in a folder, too."""

    def __init__(self, folder: Path, with_state: bool = False) -> None:
        super().__init__(folder / "checkpoint", with_state=with_state)
        self.log = folder / "log"

    def keep_log(self) -> None:
        store = open_store(str(self.log))
        for slot in range(len(store.slots()), len(self.entries)):
            store.put_if_absent(slot, serialise(self.entries[slot]))

    def call(self, look: Look, command: str, *options: str, answers: str = "") -> Done:
        self.keep_log()
        return look("checkpoint", command, self.path, self.log, *options, answers=answers)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path)
    made.run(6)
    return made


def test_a_checkpoint_of_the_same_age_needs_no_repair(case: Case, look: Look) -> None:
    before = case.contents()
    for command in ("compare", "repair"):
        done = case.call(look, command)
        assert (done.code, done.err) == (ExitCode.FINE, "")
        assert "Nothing to repair: log and checkpoint belong together." in done.out
    assert case.contents() == before


def test_compare_shows_what_differs_and_what_repair_would_do(case: Case, look: Look) -> None:
    case.lose_batches(4, 5)
    case.plan(4, end=5000)
    before = case.contents()
    done = case.call(look, "compare")
    assert done.code == ExitCode.IN_DOUBT
    assert re.search(r"5 +decided +not planned", done.out)
    assert re.search(r"4 +sources\.0\.orders\.0 +500 +5000", done.out)
    assert "Batch 4 of the checkpoint ends 4500 records later in source 0." in done.out
    assert re.findall(r"^(write|put aside) +(\S+) *$", done.out, re.MULTILINE) == [
        ("write", "offsets/4"),
        ("write", "commits/4"),
        ("write", "sources/1/7"),
        ("write", "offsets/5"),
    ]
    assert "goes on with batch 5, which it evaluates once more and does not write again." in done.out
    assert case.contents() == before


def test_repair_asks_first_and_says_what_it_can_not_know(case: Case, look: Look) -> None:
    case.lose_batches(5)
    before = case.contents()
    done = case.call(look, "repair", answers="n\n")
    assert done.code == ExitCode.REFUSED
    assert re.search(r"must not run\. It may still run: .*the newest entry was written at 20", done.err)
    assert case.contents() == before

    case.entries.append(closed(case.entries[-1]))
    done = case.call(look, "repair", answers="y\n")
    assert "It stopped cleanly." in done.err
    assert re.search(r"Repaired\. What was replaced is in .*/checkpoint/twopc-put-aside/2", done.out)
    assert done.code == ExitCode.FINE
    assert case.planned().changes == ()


def test_repair_says_how_often_a_query_with_state_takes_it(tmp_path: Path, look: Look) -> None:
    case = Case(tmp_path, with_state=True)
    case.run(6)
    case.lose_batches(3, 4, 5)
    done = case.call(look, "repair", "--yes")
    assert "goes on with batch 3, " in done.out
    assert "Repair and start it 2 more times." in done.out
    assert done.code == ExitCode.FINE
    assert "Nothing to repair. The query goes on with batch 3, " in case.call(look, "compare").out


def test_what_can_not_be_repaired_is_shown_and_refused(case: Case, look: Look) -> None:
    case.plan(4, end=5000)
    before = case.contents()
    for command in ("compare", "repair"):
        done = case.call(look, command)
        assert done.code == ExitCode.REFUSED
        assert re.search(r"4 +sources\.0\.orders\.0 +500 +5000", done.out)
        assert "Refused: Spark has noted batch 4 as done, with other input" in done.err
    assert case.contents() == before


def test_a_log_whose_batches_spark_has_not_read_is_refused(case: Case, look: Look) -> None:
    case.entries.append(decided(case.entries[-1], Decision(Round(1, 6), {}), {"read up to": 7}))
    for command in ("compare", "repair"):
        done = case.call(look, command)
        assert done.code == ExitCode.REFUSED
        assert "the input of batch 6 in the log does not have the form of Spark's checkpoint" in done.err


@pytest.mark.advice("has changed since they were compared: the query runs")
def test_a_query_that_runs_meanwhile_is_noticed(case: Case, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    case.lose_batches(5)

    def confirm(question: str, err: bool) -> bool:
        case.plan(5, end=5000)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    done = case.call(look, "repair")
    assert done.code == ExitCode.REFUSED
    assert "the query runs. Nothing was changed. Stop it, and run this again." in done.err
    assert not (case.path / "twopc-put-aside").exists()
    assert case.call(look, "repair", "--yes").code == ExitCode.FINE
    assert case.planned().changes == ()


def test_json_has_all_of_it(case: Case, look: Look) -> None:
    case.lose_batches(5)
    case.plan(5, end=5000)
    compared = case.call(look, "compare", "--json").json
    assert {name: compared[name] for name in ("decided", "planned", "noted", "has_state", "kept_from", "missing")} == {
        "decided": 5,
        "planned": 5,
        "noted": 4,
        "has_state": False,
        "kept_from": 0,
        "missing": [],
    }
    assert compared["mismatches"] == [
        {
            "batch_id": 5,
            "noted": False,
            "records": {"0": 4400},
            "differences": [{"path": "sources.0.orders.0", "decided": 600, "planned": 5000}],
        }
    ]
    assert compared["changes"] == [{"path": "offsets/5", "action": "write"}]
    assert (compared["goes_on_with"], compared["remaining"], compared["exit_code"]) == (5, 0, ExitCode.IN_DOUBT)
    done = case.call(look, "repair", "--json", "--yes").json
    assert (done["repaired"], done["exit_code"]) == (True, ExitCode.FINE)
    replaced = Path(done["put_aside"]) / "offsets/5"
    assert "5000" in replaced.read_text()


def test_no_checkpoint_is_refused_by_its_name(case: Case, look: Look) -> None:
    case.keep_log()
    done = look("checkpoint", "compare", case.path / "elsewhere", case.log)
    assert done.code == ExitCode.REFUSED
    assert "the query's id can't be read from" in done.err


def test_a_checkpoint_at_a_store_is_mended_there(case: Case, look: Look) -> None:
    before = case.contents(without="commits/5")
    case.lose_batches(4, 5)
    store = fsspec.filesystem("memory")
    for path, text in case.contents().items():
        store.pipe_file(f"/here/{path}", text.encode())
    case.keep_log()
    assert look("checkpoint", "repair", "memory://here", case.log, "--yes").code == ExitCode.FINE
    found = {path.removeprefix("/here/"): store.cat_file(path).decode() for path in store.find("/here")}
    store.rm("/here", recursive=True)
    assert found == before
