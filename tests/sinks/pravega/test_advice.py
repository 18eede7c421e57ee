"""What the errors of the Pravega sink advise is done, and works: the query goes on, and the records are there once."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.sinks.pravega.test_commit import end_of_lease
from tests.support.advice import Query, told
from twopc.log.history import read_history
from twopc_pravega.controller import Txn
from twopc_pravega.events import blocks
from twopc_pravega.options import Stream
from twopc_pravega.register import Register
from twopc_pravega.segments import Appender


@pytest.fixture
def query(place: Place, tmp_path: Path) -> Query:
    return Query(tmp_path, "pravega", place.options)


@pytest.mark.advice(", but the controller has rolled it back")
def test_a_query_goes_on_when_a_batch_was_given_up_by_the_command_of_the_message(place: Place, query: Query) -> None:
    query.decide(0, "lost")
    [committable] = query.decided()
    place.admin.abort(Txn.from_json(committable.handle))
    end_of_lease(place, committable)
    query.abandon(query.stops(0, ", but the controller has rolled it back"))
    query.run(1, "next")
    assert place.values() == ["next"]


@pytest.mark.advice("has an entry that this sink did not write")
def test_a_query_whose_register_was_replaced_by_an_empty_one_goes_on(place: Place, query: Query) -> None:
    """A batch is decided meanwhile: its completion reads the register."""
    query.decide(0, "a")
    log_id = read_history(str(query.log)).tail.log_id
    register = Register(place.admin, place.stream.scope, f"twopc.{log_id}.orders.")
    [(block, events)] = blocks(pa.array(["something else"]))
    appender = Appender(register._place, "")
    appender.append(block, events)
    appender.flush()
    error = query.stops(0, "has an entry that this sink did not write")
    found = told(error, r"the register (\S+)/(\S+) has an entry .* replace the stream by an empty one with one segment")
    stream = Stream(*found.groups())
    place.admin.delete_stream(stream)
    place.admin.create_stream(stream, 1)
    query.run(1, "b")
    assert sorted(place.values()) == ["a", "b"]
