"""A server that is asked and does not answer: it is stopped, or waits for a lock. The coordinator takes its statement
for unanswered and repeats it (invariants 2 and 6)."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.sinks.mysql.conftest import Place, new_place
from tests.support.mariadb_server import MariaDbServer
from twopc import Round
from twopc.errors import Retriable, RoundAborted
from twopc.testing.query import answered
from twopc_mysql import sessions, sink

pytestmark = pytest.mark.crash


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ANSWER_TIMEOUT_S", 2.0)
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_S", 1.0)
    monkeypatch.setattr(sink, "WRITE_TIMEOUT_S", 1.0)


@pytest.fixture
def own_place() -> Iterator[Place]:
    with MariaDbServer() as server:
        yield new_place(server)


@contextmanager
def stopped(server: MariaDbServer) -> Iterator[None]:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server._process.pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_commit_that_a_stopped_server_does_not_answer_is_repeated(own_place: Place) -> None:
    committable = own_place.pre_commit(["a"])
    coordinator = own_place.sink()
    with stopped(own_place.server):
        for _ in range(2):  # by a session that is there, and by a new one
            with pytest.raises(Retriable, match="timed out"):
                coordinator.commit(committable)
    answered(30, coordinator.commit, committable)  # the session that was stopped may still be ending it
    assert own_place.values() == ["a"]


@pytest.mark.usefixtures("impatient")
def test_a_task_whose_server_is_stopped_votes_no(own_place: Place) -> None:
    of_task = own_place.sink(lock_timeout_s=1)
    transaction = of_task.begin(of_task.transactional_ids.allocate(Round(1, 0), 0))
    with stopped(own_place.server), pytest.raises(RoundAborted, match="timed out"):
        of_task.pre_commit(transaction)
    answered(30, of_task.discard, transaction)


@pytest.mark.variants
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lock", ["FLUSH TABLES WITH READ LOCK", "LOCK TABLES {markers} WRITE"])
def test_a_coordinator_that_waits_for_a_lock_repeats_and_comes_to_its_result(lock: str, place: Place) -> None:
    committable = place.pre_commit(["a"])
    coordinator = place.sink()
    if "markers" in lock:  # which are asked after the commit
        coordinator.commit(committable)
    with place.server.connect() as other, other.cursor() as cursor:
        cursor.execute(lock.replace("{markers}", f"{place.database}.twopc_committed"))
        with pytest.raises(Retriable, match="Lock wait timeout"):
            coordinator.commit(committable)
    coordinator.commit(committable)
    assert place.values() == ["a"]
