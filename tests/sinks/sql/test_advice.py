"""What the errors of the SQL sink advise is done, and works: the query goes on, and the records are there once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.sql.conftest import Place, databases_but_long
from tests.support.advice import Query, raises, told
from tests.support.sink_place import ROUND
from twopc import Participant, Round
from twopc.errors import OutcomeUnknown, TransactionLost, TwoPhaseCommitError
from twopc_sql.options import SqlOptions
from twopc_sql.tables import Tables


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.fixture
def query(place: Place, tmp_path: Path) -> Query:
    url = place.url.render_as_string(hide_password=False)
    return Query(tmp_path, "sql", {"url": url, "table": place.table})


def forget(place: Place) -> None:
    place.ask("DELETE FROM twopc_transactions")


def change(place: Place) -> None:
    [(staged,)] = place.ask("SELECT staged FROM twopc_transactions")
    place.ask(f"DELETE FROM {staged}")  # noqa: S608  # from the database


LOST: dict[str, tuple[type[TwoPhaseCommitError], list[str], Callable[[Place], None]]] = {
    "of them are not prepared, such as": (TransactionLost, ["a"], forget),
    "and twopc_batches has no mark of this query": (OutcomeUnknown, [], forget),
    "of its … records only … could be moved": (TransactionLost, ["a"], change),
}
"""The words of an error → its class, the batches before, and what leads to it."""


@pytest.mark.in_turn("database")
@pytest.mark.advice(*LOST)
@pytest.mark.parametrize("database", databases_but_long("postgresql", "sqlite"))
@pytest.mark.parametrize("words", LOST)
def test_a_query_goes_on_when_a_batch_was_given_up_by_the_command_of_the_message(
    words: str, place: Place, query: Query
) -> None:
    kind, before, damage = LOST[words]
    for batch_id, value in enumerate(before):
        query.run(batch_id, value)
    query.decide(len(before), "lost")
    damage(place)
    error = query.stops(len(before), words)
    assert (type(error), place.values()) == (kind, before)
    query.abandon(error)
    query.run(len(before) + 1, "next")
    assert place.values() == [*before, "next"]


@pytest.mark.advice("it has lost a commit, or the table was restored")
def test_a_database_that_was_restored_while_the_query_was_stopped_gets_a_batch_when_its_mark_is_set(
    place: Place, query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(0, "a")
    shutil.copy(str(place.url.database), tmp_path / "copy")
    query.run(1, "b")
    shutil.copy(tmp_path / "copy", str(place.url.database))
    monkeypatch.setattr("twopc.failures.STALE_S", 0.3)  # it may be behind until then
    error = query.stops(2, "the table was restored")
    told(error, r"had batch 1 of this query, and twopc_batches shows batch 0")
    place.ask(told(error, r"run (UPDATE .*), and start again")[1])
    query.run(2, "c")
    assert place.values() == ["a", "c"]


def test_a_statement_for_an_operator_quotes_the_schema_as_its_database_does() -> None:
    quoted = {"postgresql+psycopg": '"My Shop"', "mysql+pymysql": "`My Shop`"}
    for scheme, schema in quoted.items():
        options = SqlOptions.parse({"url": f"{scheme}://db.example/sales", "table": "My Shop.orders"})
        assert Tables(options).marks == f"{schema}.twopc_batches"


@pytest.mark.advice("and twopc_batches has no mark of this query")
def test_a_batch_is_committed_when_the_option_is_set_back(place: Place, query: Query) -> None:
    query.decide(0, "a")
    other = Place(place.url.set(database=f"{place.url.database}.other"))
    other.create("value {text}")
    query.options["url"] = other.url
    error = query.stops(0, "and twopc_batches has no mark of this query")
    query.options[told(error, r"If '(\w+)' or 'table' was changed, set it back")[1]] = place.url
    query.run(0)
    assert place.values() == ["a"]


@pytest.mark.advice("was rolled back while it was written")
def test_a_batch_that_was_rolled_back_while_it_was_written_is_run_again(place: Place) -> None:
    with (
        raises("was rolled back while it was written"),
        Participant({"orders": place.sink()}, ROUND, partition=0) as participant,
    ):
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        newer = place.sink()
        newer.abort(*newer.recover())
        participant.pre_commit()
    place.sink().commit_batch(0, [place.vote(["a"], Round(2, 0))])
    assert place.values() == ["a"]
