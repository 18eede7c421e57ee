"""The register lists what was begun, stays small, and is never taken for empty."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.sinks.pravega.test_commit import SHORT_S
from tests.support.raising import raising
from tests.support.sink_place import ROUND
from tests.support.waiting import until
from twopc import Committable, Round
from twopc.errors import ConfigurationError, OperatorRequired, Retriable, RoundAborted
from twopc_pravega import PravegaSink
from twopc_pravega.controller import Controller, State
from twopc_pravega.events import blocks
from twopc_pravega.options import Stream
from twopc_pravega.register import Register
from twopc_pravega.segments import Appender, Command, SegmentError


def size(sink: PravegaSink) -> int:
    """The bytes that the register has."""
    register = sink._register
    start, end = register._ask(lambda connection: connection.bounds(register._place.name, ""))
    return end - start


def test_the_register_does_not_grow_with_the_batches(place: Place) -> None:
    sink, sizes = place.sink(), []
    for batch_id in range(12):
        committables = [place.pre_commit([f"{batch_id}"], Round(1, batch_id), partition) for partition in range(3)]
        loser = sink.begin(sink.transactional_ids.allocate(Round(1, batch_id), partition=0, serial=9))
        for committable in committables:
            sink.commit(committable)
        sink.complete(batch_id, committables)
        assert [found.transaction_id for found in sink.recover()] == [loser.id.exact]
        sink.discard(loser)
        sizes.append(size(sink))
    assert max(sizes) < 3 * 200, sizes  # those of the batch that is complete, at the most
    sink.complete(12, [])
    assert size(sink) == 0
    assert len(place.values()) == 36


def test_an_open_transaction_is_kept_in_the_register_with_all_that_came_after_it(place: Place) -> None:
    sink = place.sink()
    open_ = place.pre_commit(["a"])
    later = place.pre_commit(["b"], Round(1, 1))
    sink.commit(later)
    for _ in range(2):
        sink.complete(1, [later])
    assert [entry.name for entry in sink._register.entries()] == [open_.transaction_id, later.transaction_id]
    assert [found.transaction_id for found in sink.recover()] == [open_.transaction_id]


def test_two_coordinators_may_truncate_the_register_at_once(place: Place) -> None:
    ahead, behind = place.sink()._register, place.sink()._register
    for partition in range(3):
        sink = place.sink()
        sink.discard(sink.begin(sink.transactional_ids.allocate(ROUND, partition=partition)))
    first, second, third = ahead.entries()
    ahead.truncate(second.end)
    behind.truncate(first.end)
    assert behind.entries() == [third]


def test_tasks_may_enter_their_transactions_at_once(place: Place) -> None:
    sink = place.sink()

    def begin(partition: int) -> str:
        return sink.begin(sink.transactional_ids.allocate(ROUND, partition=partition)).id.exact

    with ThreadPoolExecutor(8) as pool:
        begun = [*pool.map(begin, range(16))]
    assert sorted(found.transaction_id for found in place.sink().recover()) == sorted(begun)


def test_a_register_with_something_else_is_an_error_and_not_an_empty_list(place: Place) -> None:
    sink = place.sink()
    register = sink._register
    [(block, events)] = blocks(pa.array(["something else"]))
    appender = Appender(register._place, "")
    appender.append(block, events)
    appender.flush()
    for call in (lambda: [*sink.recover()], lambda: sink.complete(0, [])):
        with pytest.raises(OperatorRequired, match="this sink did not write"):
            call()


def test_a_register_that_cannot_be_read_is_an_error_and_not_an_empty_list(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    place.pre_commit(["a"])
    monkeypatch.setattr(Register, "_read", raising(SegmentError(Command.ERROR_MESSAGE, "the register")))
    with pytest.raises(Retriable, match="ERROR_MESSAGE"):
        [*sink.recover()]


def test_a_register_that_is_missing_is_an_error_and_not_an_empty_list(place: Place) -> None:
    sink = place.unbound()
    sink.bind("orders", "never-opened")
    with pytest.raises((Retriable, OperatorRequired, ConfigurationError)):
        [*sink.recover()]


def test_each_sink_of_each_query_has_a_register_of_its_own(place: Place) -> None:
    names = {
        Register(place.admin, "s", f"twopc.{log}.{sink}.").stream.name
        for log in ("log", "log-", "log_", "log-u", "log--")
        for sink in ("a_sink", "a-sink", "a-usink", "a--sink")
    }
    assert len(names) == 20


def test_a_transaction_that_can_not_be_entered_is_rolled_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, begun = place.sink(), []
    begin = Controller.begin

    def noted(*arguments: object) -> object:
        begun.append(begin(*arguments))  # type: ignore[arg-type]  # as it is called
        return begun[-1]

    monkeypatch.setattr(Controller, "begin", noted)
    monkeypatch.setattr(Register, "add", raising(ConnectionResetError("the register is away")))
    with pytest.raises(RoundAborted, match="the register is away"):
        sink.begin(sink.transactional_ids.allocate(ROUND, partition=0))
    until(lambda: place.admin.state(begun[0].txn) is State.ABORTED)


def test_a_transaction_that_a_crash_kept_out_of_the_register_holds_back_nobody_and_ends_with_its_lease(
    place: Place,
) -> None:
    orphan = place.admin.begin(place.stream, SHORT_S * 1000).txn
    committable = place.pre_commit(["a"])
    place.sink().commit(committable)
    assert place.values() == ["a"]
    assert place.admin.state(orphan) is State.OPEN
    until(lambda: place.admin.state(orphan) is State.ABORTED)


def test_a_scope_that_does_not_exist_is_refused(place: Place) -> None:
    register = Register(place.admin, "nowhere", "twopc.log.orders.")
    with pytest.raises(ConfigurationError, match="no scope 'nowhere'"):
        register.create()


def test_a_name_that_is_too_long_for_a_register_is_refused(place: Place) -> None:
    register = Register(place.admin, place.stream.scope, f"twopc.{'l' * 200}.{'o' * 60}.")
    with pytest.raises(ConfigurationError, match="255 characters"):
        register.create()
    assert Stream(place.stream.scope, register.stream.name) == register.stream


def test_a_cluster_that_has_no_register_of_a_decided_batch_is_not_asked_for_its_commit(place: Place) -> None:
    """It may know another transaction by the same id."""
    sink = place.unbound()
    sink.bind("orders", "lost")
    sink.pending = {7: (Committable("orders", {}),)}
    for _ in range(2):
        with pytest.raises(OperatorRequired, match="batch 7 is decided, and this cluster does not have"):
            sink.open()
    assert not sink._register.exists()
