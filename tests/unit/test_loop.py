"""``twopc.loop``: a batch and the step to the next one are decided together."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.raising import raising
from twopc.coordinator import Coordinator
from twopc.errors import Fenced, RepeatedFailure, RoundAborted
from twopc.loop import Read, run
from twopc.testing import MemorySink, MemoryTarget


class Numbers:
    """A source of the numbers below ``end``, two per batch."""

    def __init__(self, end: int) -> None:
        self.end, self.next = end, 0
        self.began_at: Any = "not yet"

    def begin(self, position: Any) -> None:
        self.began_at = position
        self.next = (position or {"next": 0})["next"]

    def read(self) -> Read | None:
        numbers = list(range(self.next, min(self.next + 2, self.end)))
        self.next += len(numbers)
        offsets = pa.record_batch({"offset": [self.next]})
        return Read(pa.record_batch({"n": numbers}), {"next": self.next}, offsets) if numbers else None


@pytest.fixture
def target() -> MemoryTarget:
    return MemoryTarget()


@pytest.fixture
def serve(target: MemoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Numbers]:
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def serve(end: int, sink: Any = None, **arguments: Any) -> Numbers:
        source = Numbers(end)
        run(
            source,
            {"numbers": sink or MemorySink(target), **arguments.pop("sinks", {})},
            lambda records: {"numbers": records},
            log=str(tmp_path / "log"),
            owner="numbers",
            is_stopping=lambda: len(target.visible) >= end,
            rest_interval_s=None,
            **arguments,
        )
        return source

    return serve


def numbers(target: MemoryTarget) -> list[int]:
    return [row["n"] for row in target.visible]


def test_a_start_goes_on_after_the_newest_decided_batch(serve: Callable[..., Numbers], target: MemoryTarget) -> None:
    assert serve(3).began_at is None
    assert serve(5).began_at == {"next": 3}
    assert numbers(target) == [0, 1, 2, 3, 4]


def test_a_batch_that_was_rolled_back_is_run_again_with_the_records_that_were_read(
    serve: Callable[..., Numbers], target: MemoryTarget
) -> None:
    failures = [RoundAborted("once"), RoundAborted("twice")]

    class Failing(MemorySink):
        def pre_commit(self, transaction: Any) -> Any:
            if failures:
                raise failures.pop()
            return super().pre_commit(transaction)

    serve(4, Failing(target))
    assert (numbers(target), failures) == ([0, 1, 2, 3], [])


def test_a_failure_that_is_not_known_to_pass_ends_each_start_and_the_third_calls_an_operator(
    serve: Callable[..., Numbers], target: MemoryTarget
) -> None:
    tries: list[object] = []

    class Failing(MemorySink):
        def pre_commit(self, transaction: Any) -> Any:
            tries.append(transaction)
            raise ValueError("no plan")

    for start, kind in enumerate((RoundAborted, RoundAborted, RepeatedFailure), 1):
        with pytest.raises(kind):
            serve(2, Failing(target))
        assert len(tries) == start


@pytest.mark.parametrize("call", ["begin", "read"])
def test_a_source_that_fails_at_each_start_calls_an_operator(
    serve: Callable[..., Numbers], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Numbers, call, raising(ValueError("no such position")))
    for kind in (ValueError, ValueError, RepeatedFailure):
        with pytest.raises(kind, match="no such position"):
            serve(2)


def test_a_read_without_records_keeps_its_position_and_is_not_routed(tmp_path: Path, target: MemoryTarget) -> None:
    class Placed(Numbers):
        def read(self) -> Read | None:
            return super().read() if self.next else self._place()

        def _place(self) -> Read:
            self.next = 2
            return Read(pa.record_batch({"n": pa.array([], pa.int64())}), {"next": 2})

    def route(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        raise ValueError(records.num_rows)

    def serve(end: int) -> Any:
        source = Placed(end)
        stops = iter([False, True])
        run(
            source,
            {"numbers": MemorySink(target)},
            route,
            log=str(tmp_path / "log"),
            owner="numbers",
            is_stopping=lambda: next(stops),
        )
        return source.began_at

    assert serve(4) is None
    for kind in (RoundAborted, RoundAborted, RepeatedFailure):  # what the route raises ends a round
        with pytest.raises(kind, match=r"ValueError\)?: 2"):
            serve(4)


def test_a_stop_ends_the_repetition(serve: Callable[..., Numbers], target: MemoryTarget) -> None:
    class Failing(MemorySink):
        def pre_commit(self, transaction: Any) -> Any:
            target.visible.extend([{"n": -1}] * 2)  # by which the test's loop stops
            raise RoundAborted("each time")

    with pytest.raises(RoundAborted):
        serve(2, Failing(target))


def test_a_later_process_fences_an_earlier_one(
    serve: Callable[..., Numbers], target: MemoryTarget, tmp_path: Path
) -> None:
    class Overtaken(MemorySink):
        def pre_commit(self, transaction: Any) -> Any:
            with Coordinator({"numbers": MemorySink(target)}, str(tmp_path / "log"), owner="numbers") as later:
                later.recover()
            return super().pre_commit(transaction)

    with pytest.raises(Fenced):
        serve(2, Overtaken(target))
    assert numbers(target) == []
    serve(2)
    assert numbers(target) == [0, 1]


def test_offsets_are_written_in_the_same_decision(serve: Callable[..., Numbers]) -> None:
    offsets = MemoryTarget()
    serve(3, sinks={"offsets": MemorySink(offsets)}, offsets="offsets")
    assert [row["offset"] for row in offsets.visible] == [2, 3]
