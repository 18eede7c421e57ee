"""Transactions that have no time-out, where the brokers grant it (KIP-939)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin.acl import CreateAclsRequest

import twopc
from tests.sinks.kafka.access import as_user, grant
from tests.sinks.kafka.groups import Group
from tests.sinks.kafka.writing import text, written
from tests.support.observing import Killed, observing
from tests.support.phase_one import writes
from twopc import Committable, Coordinator
from twopc.errors import ConfigurationError, LogMismatch, Retriable, RoundAborted, TransactionLost
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase
from twopc.testing.query import answered
from twopc_kafka.client.control import Control

NEVER_MS = (1 << 31) - 1
TIMEOUT_MS = 1000
VALUES = ["a", "b"]


@pytest.fixture
def killed_at() -> Iterator[Callable[[Phase | None], None]]:
    """Have coordinators of this process die as they enter a phase, or no more."""

    class Observer:
        phase: Phase | None = None

        @twopc.hookimpl
        def twopc_event(self, event: Event) -> None:
            if isinstance(event, PhaseEntered) and event.phase is self.phase:
                raise Killed

    with observing(Observer()) as observer:
        yield lambda phase: setattr(observer, "phase", phase)


@pytest.fixture
def topic(broker_without_timeouts: Any, make_topic: Any) -> Any:
    return make_topic(on=broker_without_timeouts.broker)


@pytest.fixture
def make_arrow_sink(make_sink: Any) -> Any:
    def make(on: Any, /, **options: Any) -> Any:
        return make_sink(on, **{"writer": "arrow", "transaction_timeout_ms": TIMEOUT_MS, **options})

    return make


def pre_committed(sink: Any, partition: int = 0) -> Committable:
    """A participant's vote, in a sink that was opened as a coordinator does: again while its broker is starting."""
    answered(60.0, sink.open)
    vote: Committable = written(sink, text(*VALUES), partition=partition)
    return vote


def timeout_ms(sink: Any, committable: Committable) -> int:
    """What the broker says of the transaction."""
    [described] = sink._control.describe([committable.transaction_id]).values()
    return int(described.timeout_ms)


def run_batch(sink: Any, log: Path, stage: Path | None = None) -> None:
    copies = f"file://{stage}" if stage else None
    with Coordinator({"orders": sink}, f"file://{log}", owner="query", replay_copies=copies) as coordinator:
        coordinator.run(0, writes({"orders": sink}, text(*VALUES)))


@pytest.mark.long
@pytest.mark.crash
def test_what_was_decided_is_committed_after_all_was_down_for_longer_than_the_time_out(
    broker_without_timeouts: Any, topic: Any, make_topic: Any, make_arrow_sink: Any, killed_at: Any, wait: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    log, stage = tmp_path / "log", tmp_path / "stage"
    other = make_topic(on=broker_without_timeouts.broker)
    with_timeout = make_arrow_sink(other, log_id="timed", two_phase_commit="off")
    [timed] = with_timeout.seal([pre_committed(with_timeout)], age_s=0)
    killed_at(Phase.COMMITTING)
    with pytest.raises(Killed):
        run_batch(make_arrow_sink(topic, log_id=None, two_phase_commit="require"), log, stage)
    killed_at(None)
    broker_without_timeouts.broker.kill()
    broker_without_timeouts.broker.start()
    wait.until("the other's time-out has passed", lambda: is_rolled_back(with_timeout, timed))
    with pytest.raises(TransactionLost, match=r"'transaction\.timeout\.ms' \(1000 ms\)"):
        wait.repeated(lambda: with_timeout.commit(timed))
    assert topic.visible() == []
    run_batch(make_arrow_sink(topic, log_id=None, two_phase_commit="require"), log)  # decided: it is not written again
    assert topic.visible() == VALUES
    assert list(stage.glob("*")) == []


def is_rolled_back(sink: Any, committable: Committable) -> bool:
    try:
        described = sink._control.describe([committable.transaction_id])
    except Retriable:
        return False
    return bool(described[committable.transaction_id].state == "CompleteAbort")


@pytest.fixture
def undecided(topic: Any, make_arrow_sink: Any, killed_at: Any, tmp_path: Path) -> None:
    """A driver has died before its decision, and left open what was pre-committed."""
    killed_at(Phase.DECIDING)
    with pytest.raises(Killed):
        run_batch(make_arrow_sink(topic, log_id=None), tmp_path)
    killed_at(None)


@pytest.mark.long
@pytest.mark.usefixtures("undecided")
def test_what_a_dead_driver_had_not_decided_is_rolled_back_by_the_next_one(
    topic: Any, make_arrow_sink: Any, tmp_path: Path
) -> None:
    assert not topic.has_no_open_transaction()
    with Coordinator(
        {"orders": make_arrow_sink(topic, log_id=None)}, f"file://{tmp_path}", owner="query"
    ) as coordinator:
        coordinator.recover()
    topic.stays_empty()


@pytest.mark.advice("what it has open would not be found")
@pytest.mark.usefixtures("undecided")
def test_a_prefix_by_which_it_would_not_be_found_is_refused_until_it_is_set_back(
    topic: Any, make_arrow_sink: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        LogMismatch, match=r"sink 'orders'.*'another': what it has open would not be found.* Give it its prefix back"
    ):
        run_batch(make_arrow_sink(topic, log_id=None, transactional_id_prefix="another"), tmp_path)
    run_batch(make_arrow_sink(topic, log_id=None), tmp_path)
    assert topic.visible() == VALUES


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_where_it_is_granted_no_transaction_ends_by_itself(
    mode: str, topic: Any, make_arrow_sink: Any, wait: Any
) -> None:
    sink = make_arrow_sink(topic, two_phase_commit=mode)
    vote = pre_committed(sink)
    assert timeout_ms(sink, vote) == NEVER_MS
    [found] = sink.recover()
    assert found.is_same_transaction(vote)
    [sealed] = sink.seal([vote], age_s=10 * TIMEOUT_MS)  # no age is too old
    assert sealed.is_same_transaction(vote)
    sink.abort(sealed)
    with pytest.raises(TransactionLost, match="it has no timeout, so another client has ended it"):
        wait.repeated(lambda: sink.commit(sealed))


def test_where_it_is_off_transactions_have_their_time_out(topic: Any, make_arrow_sink: Any) -> None:
    sink = make_arrow_sink(topic, two_phase_commit="off")
    vote = pre_committed(sink)
    assert timeout_ms(sink, vote) == TIMEOUT_MS
    with pytest.raises(RoundAborted, match=r"'transaction\.timeout\.ms' = 1000 ms"):
        sink.seal([vote], age_s=10 * TIMEOUT_MS)


def test_offsets_have_no_time_out_either(topic: Any, prefix: str, wait: Any) -> None:
    group = Group(topic, prefix)
    sink = group.sink()
    wait.repeated(sink.open)  # until the group has a coordinator
    committable = group.pre_commit(sink, {0: 1})
    assert timeout_ms(sink, committable) == NEVER_MS
    sink.abort(committable)


# Where it is not granted. ---------------------------------------------------------------------------------------------

REFUSED = (
    r"'two.phase.commit' = 'require'.*transaction\.two\.phase\.commit\.enable=true and"
    r" unstable\.api\.versions\.enable=true.*TWO_PHASE_COMMIT and WRITE on the transactional ids"
)


def test_brokers_that_do_not_know_it_are_refused_or_done_without(make_topic: Any, make_arrow_sink: Any) -> None:
    topic = make_topic()
    with pytest.raises(ConfigurationError, match=REFUSED):
        make_arrow_sink(topic, two_phase_commit="require").open()
    sink = make_arrow_sink(topic)
    vote = pre_committed(sink)
    assert timeout_ms(sink, vote) == TIMEOUT_MS
    assert sink.seal([vote], age_s=0)
    sink.abort(vote)


def test_a_principal_without_the_right_is_refused_or_does_without(
    broker_without_timeouts: Any, topic: Any, make_arrow_sink: Any, prefix: str, wait: Any
) -> None:
    login = as_user(broker_without_timeouts, "granted")
    control = Control({"bootstrap_servers": [topic.servers]})
    grant(broker_without_timeouts, "granted", topic.name, prefix)
    auto = make_arrow_sink(topic, **login)
    wait.until("the grant has arrived", lambda: _is_allowed(auto))
    assert timeout_ms(auto, pre_committed(auto)) == TIMEOUT_MS
    require = make_arrow_sink(topic, two_phase_commit="require", **login)
    with pytest.raises(ConfigurationError, match=REFUSED):
        require.open()
    grant_two_phase_commit(control, prefix)
    wait.until("the grant has arrived", lambda: auto._control.grants_no_timeout(f"{prefix}.log.orders.probe"))
    vote = pre_committed(require)
    assert timeout_ms(require, vote) == NEVER_MS
    require.abort(vote)
    control.close()


def grant_two_phase_commit(control: Control, prefix: str) -> None:
    """What librdkafka's admin client has no name for."""
    binding = CreateAclsRequest.AclCreation(
        resource_type=5,  # transactional ids
        resource_name=f"{prefix}.",
        resource_pattern_type=4,  # prefixed
        principal="User:granted",
        host="*",
        operation=15,  # TWO_PHASE_COMMIT
        permission_type=3,
    )

    [result] = control.run(control.manager.send, CreateAclsRequest(creations=[binding])).results
    assert result.error_code == 0, result


def _is_allowed(sink: Any) -> bool:
    try:
        sink.abort(pre_committed(sink))
    except Exception:  # noqa: BLE001  # whichever right is not there yet
        return False
    return True
