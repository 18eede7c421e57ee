"""What an error carries for programs and operators: attributes, and a link to the catalog."""

import pickle
import sqlite3
import traceback

import psycopg
import pymysql
import pytest

from tests.support.incarnations import log_of
from tests.support.raising import raising
from tests.unit.test_coordinator import World, run, sink
from twopc import Committable, errors
from twopc.errors import (
    ConfigurationError,
    Fenced,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.failures import ABORTED, identity, mapped
from twopc.phases import Phase

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TwoPhaseCommitError)]


def test_a_refused_record_says_where_it_is_as_far_as_that_is_known() -> None:
    refused = RecordRefused("it is null", record=2, column="topic")
    assert refused.message == "record 2, column 'topic': it is null"
    refused.locate("orders", task=3, before=10)
    assert refused.message == "sink 'orders', task 3, record 12, column 'topic': it is null"
    assert (refused.topic, refused.partition) == (None, None)
    assert RecordRefused("it is null").message == "it is null"


def test_a_refused_record_of_no_known_position_has_none_when_it_is_located() -> None:
    refused = RecordRefused("the brokers refuse it", topic="a", partition=0)
    refused.locate("orders", task=0, before=10)
    assert refused.record is None
    assert refused.message == "sink 'orders', task 0, topic 'a', partition 0: the brokers refuse it"


def test_a_refused_record_is_the_same_in_another_process() -> None:
    refused = RecordRefused("it is null", sink="orders", record=2)
    arrived = pickle.loads(pickle.dumps(refused))  # noqa: S301  # its own
    assert (type(arrived), str(arrived), vars(arrived)) == (RecordRefused, str(refused), vars(refused))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_ends_with_the_command_that_describes_its_class(kind: type[TwoPhaseCommitError]) -> None:
    link = f"python -m pydoc twopc.{kind.__name__}"
    assert str(kind("It stopped.")) == f"It stopped. See {link}"
    assert str(kind("it stopped")) == f"it stopped; see {link}"
    assert kind("it stopped").args == ("it stopped",)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_its_attributes_in_another_process_too(kind: type[TwoPhaseCommitError]) -> None:
    error = kind("it stopped")
    error.fill_in(sink="orders", batch_id=3, transaction_id="t", phase=Phase.COMMITTING)
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own
    assert (type(arrived), str(arrived), vars(arrived)) == (kind, str(error), vars(error))
    assert (arrived.sink, arrived.batch_id, arrived.transaction_id) == ("orders", 3, "t")
    assert arrived.phase is Phase.COMMITTING


def test_an_option_that_is_wrong_arrives_with_its_error() -> None:
    error = ConfigurationError("the option 'path' must be a folder", option="path", sink="orders")
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own
    assert (arrived.option, arrived.sink) == ("path", "orders")
    assert ConfigurationError("two backends are named 'files'").option is None


def test_an_error_that_quotes_others_names_its_own_class_alone() -> None:
    for quoted in (Retriable("no answer"), Retriable("No answer.")):
        error = RoundAborted(f"batch 1 failed ({quoted}). Run it again; see above")
        error = RoundAborted(f"{error} and {error}")
        assert str(error).count("pydoc") == 1
        assert str(error).endswith("; see python -m pydoc twopc.RoundAborted")
        assert f"({quoted.message})" in error.message


def test_an_error_defined_elsewhere_names_its_base() -> None:
    class QuotaExceeded(Refused):
        pass

    assert str(QuotaExceeded("Too much.")) == "Too much. See python -m pydoc twopc.Refused"


def test_what_is_known_of_an_error_is_not_replaced() -> None:
    error = Fenced("it stopped", batch_id=3)
    error.fill_in(batch_id=4, sink="orders")
    assert (error.batch_id, error.sink, error.phase) == (3, "orders", None)


def lost(committable: Committable) -> None:
    raise TransactionLost("it timed out")


def test_an_error_of_a_commit_names_sink_batch_transaction_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = World().ran(0)
    monkeypatch.setattr(sink(coordinator, "b"), "commit", lost)
    with pytest.raises(TransactionLost) as raised:
        run(coordinator, 1)
    error = raised.value
    assert (error.sink, error.batch_id, error.phase) == ("b", 1, Phase.COMMITTING)
    [first, _] = log_of(coordinator).tail.unresolved[-1].committables["b"]
    assert error.transaction_id == first.transaction_id
    with pytest.raises(TransactionLost) as raised:  # the batch that is not committed, and not the one that is run
        run(coordinator, 2)
    assert (raised.value.batch_id, raised.value.phase) == (1, Phase.RECOVERING)


def test_a_failed_round_names_sink_batch_and_phase() -> None:
    coordinator = World().coordinator()
    sink(coordinator, "a").during["seal"] = raising(SchemaMismatch("too old"))
    with pytest.raises(SchemaMismatch) as refused:
        run(coordinator, 0)
    assert (refused.value.sink, refused.value.batch_id, refused.value.phase) == ("a", 0, Phase.SEALING)
    sink(coordinator, "a").during["seal"] = raising(RoundAborted("too old"))
    with pytest.raises(RoundAborted) as aborted:
        run(coordinator, 0)
    assert (aborted.value.sink, aborted.value.batch_id, aborted.value.phase) == ("a", 0, Phase.SEALING)


def test_an_error_of_the_log_names_the_batch_and_the_phase() -> None:
    world = World()
    coordinator = world.ran(0)
    world.coordinator().recover()
    with pytest.raises(Fenced) as fenced:
        run(coordinator, 1)
    assert (fenced.value.sink, fenced.value.batch_id) == (None, 1)
    assert fenced.value.phase is Phase.DECIDING


def test_a_refused_schema_names_its_sink_in_the_participant(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = World().coordinator()
    coordinator.recover()
    monkeypatch.setattr(sink(coordinator, "a"), "validate", raising(SchemaMismatch("no column 'key'")))
    with pytest.raises(SchemaMismatch) as refused:
        run(coordinator, 0)
    assert (refused.value.sink, refused.value.batch_id) == ("a", 0)


@pytest.mark.parametrize(
    ("failed", "is_shown"),
    [(RecordRefused, False), (Refused, False), (RoundAborted, True), (ConfigurationError, True)],
)
def test_the_traceback_of_a_refused_record_has_no_value_of_it(
    failed: type[TwoPhaseCommitError], is_shown: bool
) -> None:
    row = "Failing row contains (7, hunter2)"
    with pytest.raises(failed) as caught, mapped(ValueError, lambda error: failed(type(error).__name__)):
        raise ValueError(row)
    assert (f"ValueError: {row}" in "".join(traceback.format_exception(caught.value))) is is_shown


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UniqueViolation("DETAIL:  Key (name)=(hunter2) already exists."),
        sqlite3.IntegrityError("hunter2"),
        pymysql.IntegrityError(1062, "Duplicate entry 'hunter2' for key 'PRIMARY'"),
        pymysql.OperationalError(1526, "Table has no partition for value 'hunter2'"),
    ],
)
@pytest.mark.parametrize("failed", [RoundAborted, OutcomeUnknown])
def test_the_traceback_of_a_duplicate_key_has_no_value_of_it(
    failed: type[TwoPhaseCommitError], error: Exception
) -> None:
    with pytest.raises(failed) as caught, mapped(Exception, lambda error: failed(type(error).__name__)):
        raise error
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown
    assert f"WithoutValues: {type(error).__name__}" in shown
    assert identity(caught.value) != ABORTED, "it is not known to pass"
