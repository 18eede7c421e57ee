"""Which steps of a batch the contract's processes are killed at, and the parent that they are forked from."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from twopc.errors import RoundAborted
from twopc.testing.kills import FEW, Choice, killed_at_each_step
from twopc.transactional_ids import TransactionId
from twopc_files.sink import FileSink, FileTransaction

CALLS = [f"call of {number}" for number in range(21)]
LINES = [f"commit, sink.py line {number}" for number in range(17)]
STEPS = [*CALLS[:12], *LINES, *CALLS[12:]]


def chosen(text: str, kills: int = 40) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FEW, text)
        return [STEPS[number] for number in Choice.given(kills).of(STEPS)]


def test_successive_runs_kill_at_every_step_and_at_every_call_before_every_line() -> None:
    runs = [chosen(f"3@{run}") for run in range(17)]
    assert {len(run) for run in runs} == {3}
    assert {step for run in runs for step in run} == {*STEPS}
    assert {step for run in runs[:11] for step in run} >= {*CALLS}


def test_a_run_kills_at_as_many_steps_as_there_are_to_the_limit() -> None:
    for few in range(1, 40):
        run = chosen(f"{few}@{0xDEADBEEF}")
        assert len({*run}) == len(run) == min(few, len(STEPS))


def test_the_environment_lowers_the_kills_of_a_sink_and_does_not_raise_them() -> None:
    assert len(chosen("3", kills=40)) == 3
    assert len(chosen("30@7", kills=4)) == 4


def test_without_a_run_the_steps_are_the_same_and_calls_come_before_lines() -> None:
    assert [STEPS[number] for number in Choice(21).of(STEPS)] == CALLS
    assert chosen("") == STEPS


@pytest.mark.parametrize("text", ["many", "3@", "3@abc", "@4", "-1", "3@-1"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=FEW):
        chosen(text)


class Telling(FileSink):
    """Writes down which process forked the one it is in, and what that has in its environment."""

    def begin(self, transaction_id: TransactionId) -> FileTransaction:
        with Path(os.environ["TELLING_TO"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.getppid()}\n")
        return super().begin(transaction_id)


class Failing(FileSink):
    def begin(self, transaction_id: TransactionId) -> FileTransaction:
        raise RoundAborted("no transaction today")


def run(sink: type[FileSink], folder: Path) -> None:
    (folder / "logs").mkdir(parents=True)
    made = sink({"path": str(folder / "orders"), "format": "json"})
    batches = [[pa.record_batch({"value": ["a"]})]]
    assert [*killed_at_each_step("a_sink", made, batches, folder / "logs", 1, Choice(0))] == ["no kill"]


@pytest.mark.crash
def test_all_processes_are_forked_from_one_that_lives_on_and_has_the_environment_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELLING_TO", str(tmp_path / "first"))
    run(Telling, tmp_path / "1")
    with pytest.raises(AssertionError, match="no transaction today"):
        run(Failing, tmp_path / "2")
    monkeypatch.setenv("TELLING_TO", str(tmp_path / "second"))
    run(Telling, tmp_path / "3")
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() != f"{os.getpid()}\n"
