"""The contract accepts correct sinks that work differently from the sinks of this project."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from twopc.errors import Retriable, RoundAborted
from twopc.sink import TwoPhaseCommitSink
from twopc.testing import MemorySink, MemoryTarget, SinkContract
from twopc.testing.kills import Choice, killed_at_each_step
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId
from twopc_files.sink import FileSink


class InMemory(SinkContract):
    picklable = False
    kind: type[MemorySink]

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        return self.kind(self.target)

    def visible(self) -> list[str]:
        return [record["value"] for record in self.target.visible]


class LearningSink(MemorySink):
    """Requires ``validate`` before ``begin``. A participant always calls both in that order."""

    columns: list[str] | None = None

    def validate(self, schema: pa.Schema) -> None:
        self.columns = schema.names

    def begin(self, transaction_id: TransactionId) -> Transaction:
        assert self.columns, "begin before validate"
        return super().begin(transaction_id)


class TestASinkThatLearnsItsColumnsInValidate(InMemory):
    kind = LearningSink


class UniqueSink(MemorySink):
    """Has a unique key that open transactions hold, too, as in a database."""

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        super().write(transaction, batch)
        values = [record["value"] for records in self.target.open.values() for record in records]
        values += [record["value"] for record in self.target.visible]
        if twice := [value for value, count in Counter(values).items() if count > 1]:
            raise RoundAborted(f"a record with one of the keys {twice} exists already")


class TestASinkWithAUniqueKey(InMemory):
    kind = UniqueSink


class ShownLate(InMemory):
    """Its target system shows a commit when somebody has waited for it."""

    kind = MemorySink
    seen = 0

    def visible(self) -> list[str]:
        return super().visible()[: self.seen]

    def becomes_visible(self, values: list[str]) -> bool:
        self.seen = len(values)
        return super().becomes_visible(values)


def test_values_that_are_drawn_may_be_shown_late() -> None:
    contract = ShownLate()
    contract.target = MemoryTarget()
    contract.test_a_value_that_is_drawn_is_refused_or_read_back_as_it_was_written()


class BusySink(MemorySink):
    """Its target system does not answer the first request to abort."""

    asked = 0

    def abort(self, committable: Committable) -> None:
        self.asked += 1
        if self.asked == 1:
            raise Retriable("try again")
        super().abort(committable)


class BusyInMemory(InMemory):
    kind = BusySink


def test_an_abort_of_a_live_transaction_may_be_retriable() -> None:
    contract = BusyInMemory()
    contract.target = MemoryTarget()
    contract.test_a_transaction_without_a_record_is_rolled_back()


class BusyFiles(FileSink):
    """Its target system answers only every second ``recover``."""

    asked = 0

    def recover(self) -> Iterable[Committable]:
        self.asked += 1
        if self.asked % 2:
            raise Retriable("try again")
        return super().recover()


class SilentFiles(FileSink):
    """Its target system never answers a commit."""

    def commit(self, committable: Committable) -> None:
        time.sleep(1000)


BATCHES = [[pa.record_batch({"value": [f"{number}"]})] for number in range(3)]


@pytest.mark.crash
def test_a_process_that_recovers_after_a_kill_may_get_no_answer_at_first(tmp_path: Path) -> None:
    sink = BusyFiles({"path": str(tmp_path / "orders"), "format": "json"})
    (tmp_path / "logs").mkdir()
    kills = killed_at_each_step("a_sink", sink, BATCHES, tmp_path / "logs", 5, Choice(2))
    assert len([*kills]) == len(BATCHES)
    files = (tmp_path / "orders").glob("part-*")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(json.loads(line)["value"] for line in lines) == ["0", "1", "2"]


@pytest.mark.long
@pytest.mark.crash
def test_a_process_has_the_patience_for_an_answer_in_addition_to_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.testing.kills.HANGS_AFTER_S", 1)
    sink = SilentFiles({"path": str(tmp_path / "orders"), "format": "json"})
    (tmp_path / "logs").mkdir()
    with pytest.raises(AssertionError, match=r"a batch without a kill has not ended after 1\.5 s"):
        [*killed_at_each_step("a_sink", sink, BATCHES, tmp_path / "logs", 0.5, Choice(2))]
