"""Writers and servers are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from collections.abc import Iterator

import pytest

from tests.sinks.sql.conftest import Place
from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer
from tests.support.sql_databases import Databases
from twopc import Committable
from twopc.errors import RoundAborted
from twopc.retry import until_answered

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    """Servers that no other test uses: these are killed."""
    with Databases(own=True) as databases:
        yield databases


def written(place: Place, when: str = AFTER) -> Committable | None:
    options = {"url": place.url.render_as_string(hide_password=False), "table": place.table}
    return killed_writer("sql", options, when)


@pytest.mark.variants
def test_what_a_writer_pre_committed_before_its_kill_outlives_the_server_and_is_committed_by_another_process(
    place: Place, databases: Databases
) -> None:
    committable = written(place)
    assert committable is not None
    databases.kill_and_start(place.database)
    assert place.values() == []
    sink = place.sink()
    assert until_answered("seal", sink.seal, [committable], 0.0) == [committable]
    for _ in range(2):
        sink.commit_batch(7, [committable])
    assert place.values() == sorted(VALUES)


@pytest.mark.variants
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_what_a_killed_writer_left_undecided_is_found_and_rolled_back(when: str, place: Place) -> None:
    written(place, when)
    assert place.staged() == len(VALUES)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert (place.values(), place.staged()) == ([], 0)


@pytest.mark.variants
def test_a_server_that_is_killed_amid_a_write_fails_the_attempt_and_loses_nothing_that_is_prepared(
    databases: Databases, place: Place
) -> None:
    if not databases.servers(place.database):
        pytest.skip("it has no server")
    first = place.vote(["a"])
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(sink.transactional_ids.round_of(first.transaction_id), 1))
    databases.kill_and_start(place.database)
    sink.abort(type(first)(transaction.id.exact, {}))
    with pytest.raises(RoundAborted, match="rolled back while it was written"):
        sink.pre_commit(transaction)
    sink.commit_batch(0, [first])
    assert place.values() == ["a"]
