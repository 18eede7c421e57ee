"""What observers learn of a batch that is committed everywhere, also when another incarnation has completed it."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.observing import Killed, hearing, killed
from tests.support.phase_one import writes
from twopc import BatchCommitted, BatchPart, Committable, Coordinator, Dataset, Round, Vote
from twopc.errors import RoundAborted
from twopc.testing import MemorySink, MemoryTarget

SCHEMA = pa.schema([("value", pa.string())])


class Sink(MemorySink):
    """A sink that names a dataset, and calls ``before_commit``."""

    before_commit: Callable[[], None] = staticmethod(lambda: None)

    def commit(self, committable: Committable) -> None:
        self.before_commit()
        super().commit(committable)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset]:
        return [Dataset("memory", f"{len(committables)} transactions")]


class Query:
    """A query over two sinks, whose every coordinator is an incarnation of it."""

    def __init__(self) -> None:
        self._targets = {"a": MemoryTarget(), "b": MemoryTarget()}
        self._log = f"memory://{uuid.uuid4().hex}"
        self.sinks: dict[str, Sink] = {}

    def start(self) -> Coordinator:
        self.sinks = {name: Sink(target) for name, target in self._targets.items()}
        return Coordinator(self.sinks, self._log, owner="query")

    def run(self, coordinator: Coordinator, batch_id: int, values: Sequence[str] = ("x", "y"), **given: Any) -> None:
        coordinator.run(batch_id, writes(self.sinks, pa.record_batch([pa.array(values, pa.string())], SCHEMA)), **given)


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def events() -> Iterator[list[BatchCommitted]]:
    heard: list[BatchCommitted] = []
    with hearing(heard.append, BatchCommitted):
        yield heard


def test_a_committed_batch_has_what_it_read_and_what_each_sink_got(query: Query, events: list[BatchCommitted]) -> None:
    query.run(query.start(), 0, reads={"orders": 7})
    [event] = events
    written = (Dataset("memory", "1 transactions"),)
    assert event.parts == (BatchPart("a", 2, written, SCHEMA), BatchPart("b", 2, written, SCHEMA))
    assert (event.batch_id, event.reads, event.recovered, event.owner) == (0, {"orders": 7}, False, "query")


def test_a_batch_without_records_is_reported_too(query: Query, events: list[BatchCommitted]) -> None:
    query.run(query.start(), 0, values=())
    assert [part.records for part in events[0].parts] == [0, 0]


def test_a_batch_whose_driver_was_killed_before_its_commit_is_reported_by_the_next_one(
    query: Query, events: list[BatchCommitted]
) -> None:
    first = query.start()
    query.sinks["b"].before_commit = killed
    with pytest.raises(Killed):
        query.run(first, 0, reads={"orders": 7})
    assert events == []
    second = query.start()
    second.validate(dict.fromkeys(query.sinks, pa.schema([("other", pa.string())])))
    second.recover()
    [event] = events
    assert event.recovered
    assert event.reads == {"orders": 7}
    assert [(part.records, part.schema) for part in event.parts] == [(2, None), (2, None)]


def test_a_batch_is_reported_under_the_same_ids_until_the_log_has_it_as_complete(
    query: Query, events: list[BatchCommitted]
) -> None:
    query.run(query.start(), 0)
    query.start().recover()
    with query.start() as last:
        query.run(last, 0)  # as Spark repeats it
    query.start().recover()
    assert [event.recovered for event in events] == [False, True, True]
    assert len({(event.log_id, event.batch_id) for event in events}) == 1


def test_a_batch_that_was_rolled_back_is_not_reported(query: Query, events: list[BatchCommitted]) -> None:
    def fails(_: Round) -> list[Vote]:
        raise ValueError("no")

    with pytest.raises(RoundAborted):
        query.start().run(0, fails)
    assert events == []


def raising() -> Iterator[Dataset]:
    yield Dataset("memory", "one")
    raise OSError("the catalog is away")


@pytest.mark.parametrize("datasets", [lambda *_: 1 / 0, lambda *_: raising(), lambda *_: 1, lambda *_: [("a", "b")]])
def test_a_sink_that_can_not_name_what_it_writes_to_fails_no_batch(
    datasets: object,
    query: Query,
    events: list[BatchCommitted],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Sink, "datasets", datasets)
    query.run(query.start(), 0)
    assert [part.datasets for part in events[0].parts] == [None, None]
    assert "sink 'a' could not name what it writes to" in caplog.text


def test_a_sink_names_no_dataset_by_default(query: Query) -> None:
    assert MemorySink(MemoryTarget()).datasets([]) is None
