"""The sinks in memory keep the contract."""

from typing import Any

import pyarrow as pa
import pytest

from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, MemorySink, MemoryTableSink, MemoryTarget, SinkContract
from twopc.transaction import Transaction


class TestMemorySink(SinkContract):
    picklable = False  # the target is this process's memory

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> MemorySink:
        return MemorySink(self.target)

    def visible(self) -> list[str]:
        return [record["value"] for record in self.target.visible]

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return self.target.visible


class TestMemoryTableSink(TestMemorySink):
    def make_sink(self) -> MemorySink:
        return MemoryTableSink(self.target)


class TestKeyedMemorySink(KeyedSinkContract):
    picklable = False
    kind = MemorySink

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> MemorySink:
        return self.kind(self.target, key=["id"])

    def rows(self) -> list[tuple[str, str | None]]:
        return [(record["id"], record.get("value")) for record in self.target.visible]


class TestKeyedMemoryTableSink(TestKeyedMemorySink):
    kind = MemoryTableSink


class ForgetfulSink(MemorySink):
    """Its target may roll back what is pre-committed, so a replay copy may have to repeat its deletes."""

    may_time_out = True

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        beside = [column for column in batch.schema.names if column not in self.key]
        for row in range(batch.num_rows):
            one = batch.slice(row, 1)
            if beside and all(one.column(name).null_count for name in beside):
                self.delete(transaction, one.select(list(self.key)))
            else:
                super().write(transaction, one)


class TestKeyedForgetfulSink(TestKeyedMemorySink):
    kind = ForgetfulSink
    null_deletes = True


def test_the_contract_refuses_a_sink_that_may_time_out_and_has_no_delete_in_a_replay_copy() -> None:
    class Reviving(MemorySink):
        may_time_out = True

    class Contract(TestKeyedMemorySink):
        kind = Reviving
        target = MemoryTarget()

    with pytest.raises(AssertionError, match=r"there without reason: .*'a', None"):
        Contract().test_a_sink_that_may_time_out_deletes_by_a_record_that_is_null_beside_its_key()
