"""The incidents of ``docs/operating.md``, rehearsed with the commands that their sections name."""

import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import twopc
from tests.docs.test_change_a_query import Query
from tests.support.pages import DOCS
from tests.support.phase_one import writes
from tests.support.raising import raising
from twopc.cli.commands import cli
from twopc.errors import Fenced, OperatorRequired, TransactionLost
from twopc_files.sink import FileSink
from twopc_sql.sink import SqlSink

RUNBOOK = re.sub(
    r"^```.*?^```$", "", (DOCS / "operating.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
)
"""Without its code."""

SINKS = {"orders": "orders", "archive": "archive"}


@pytest.fixture
def query(tmp_path: Path) -> Query:
    (tmp_path / "sinks.toml").write_text(
        "".join(f'[{name}]\nbackend = "files"\npath = "{tmp_path}/{path}"\n' for name, path in SINKS.items())
    )
    made = Query(tmp_path)
    made.run(SINKS)
    return made


def follow(section: str, command: str, query: Query, *more: str) -> Result:
    """Run a command as a section of the page has it, with the places of ``query`` for those that the page names."""
    text = re.split(rf"^#+ {re.escape(section)}$", RUNBOOK, maxsplit=1, flags=re.MULTILINE)[1]
    text = " ".join(re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0].split())
    found = re.search(rf"`twopc ({command} [^`]*)`", text)
    assert found, f"{section} does not name twopc {command}"
    places = {"LOG": query.log, "sinks.toml": f"{query.folder}/sinks.toml", "N": str(query.done - 1)}
    arguments = [places.get(each, each) for each in shlex.split(found[1])]
    return CliRunner().invoke(cli, [*arguments, *more])


def fail(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, name: str) -> None:
    """Have the file sink ``name`` fail in ``method``."""
    whole: Callable[..., Any] = getattr(FileSink, method)

    def failing(sink: FileSink, committable: Any) -> Any:
        if f".{name}." in committable.transaction_id:
            raise error
        return whole(sink, committable)

    monkeypatch.setattr(FileSink, method, failing)


@pytest.fixture
def in_doubt(query: Query) -> Query:
    """A query whose driver was lost between the commits of its two sinks."""
    with pytest.MonkeyPatch.context() as patched:
        fail(patched, "commit", OperatorRequired("the driver is lost here"), "archive")
        with pytest.raises(OperatorRequired):
            query.run(SINKS)
    assert (query.written("orders"), query.written("archive")) == ([0, 1], [0])
    query.done = 2
    return query


def test_what_a_killed_driver_left_is_settled_without_the_query(in_doubt: Query) -> None:
    section = "No error: the query was killed"
    assert "In doubt" in follow(section, "status", in_doubt).output
    done = follow(section, "resolve", in_doubt, "--yes")
    assert (done.exit_code, "Nothing is in doubt any more" in done.output) == (0, True)
    in_doubt.run(SINKS)
    assert in_doubt.written("orders") == in_doubt.written("archive") == [0, 1, 2]


def test_a_lost_transaction_is_committed_when_its_file_is_put_back(in_doubt: Query, tmp_path: Path) -> None:
    [pending] = (tmp_path / "archive" / "_twopc").iterdir()
    kept = shutil.move(pending, tmp_path / "kept")
    with pytest.raises(TransactionLost, match="neither file exists"):
        in_doubt.run(SINKS)
    shutil.move(kept, pending)
    assert follow("`TransactionLost`", "resolve", in_doubt, "--yes").exit_code == 0
    in_doubt.run(SINKS)
    assert in_doubt.written("orders") == in_doubt.written("archive") == [0, 1, 2]


def test_the_query_goes_on_without_a_lost_transaction_that_was_given_up(in_doubt: Query, tmp_path: Path) -> None:
    [pending] = (tmp_path / "archive" / "_twopc").iterdir()
    pending.unlink()
    with pytest.raises(TransactionLost):
        in_doubt.run(SINKS)
    done = follow("Lost records", "abandon", in_doubt, "--yes")
    assert (done.exit_code, "Lost of batch 1" in done.output) == (0, True)
    in_doubt.run(SINKS)
    assert (in_doubt.written("orders"), in_doubt.written("archive")) == ([0, 1, 2], [0, 2])


def test_of_two_drivers_the_older_one_stops_and_the_log_shows_the_newer(query: Query) -> None:
    made = {"orders": twopc.create_sink("files", {"path": f"{query.folder}/orders"})}
    with twopc.Coordinator(made, query.log, owner="query") as older:
        older.recover()
        query.run(SINKS)
        with pytest.raises(Fenced):
            older.run(query.done, lambda _: [])
    assert re.search(r"incarnation +3, stopped cleanly", follow("`Fenced`", "status", query).output)
    query.run(SINKS)
    assert query.written("orders") == [0, 1, 2]


def test_a_changed_schema_stops_the_query_until_the_change_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sales.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    sinks = {"orders": twopc.create_sink("sql", {"url": f"sqlite:///{path}", "table": "orders"})}

    def run(batch_id: int) -> None:
        with twopc.Coordinator(sinks, str(tmp_path / "log"), owner="query") as coordinator:
            coordinator.recover()
            coordinator.run(batch_id, writes(sinks, {"id": [batch_id]}))

    with monkeypatch.context() as patched:
        patched.setattr(SqlSink, "commit_batch", raising(OperatorRequired("the driver is lost here")))
        with pytest.raises(OperatorRequired):
            run(0)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE orders RENAME COLUMN id TO number")
    with pytest.raises(OperatorRequired, match="its columns were changed"):
        run(0)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE orders RENAME COLUMN number TO id")
    run(1)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(0,), (1,)]


def test_every_incident_of_the_page_has_a_rehearsal() -> None:
    """``tests/cli/test_checkpoint.py`` rehearses ``twopc checkpoint``. What needs no command of its section is in
    ``tests/unit``: ``test_half_of_the_state.py``, ``test_repetition.py`` and ``test_coordinator.py``."""
    assert set(re.findall(r"^#{2,3} (.+)$", RUNBOOK, re.MULTILINE)) == {
        "From the error to the command",
        "No error: the query was killed",
        "`Fenced`",
        "`OperatorRequired`",
        "`RepeatedFailure`",
        "`TransactionLost`",
        "Lost records",
        "`OutcomeUnknown`",
        "The query waits",
        "No error, but something is wrong",
        "The log or the checkpoint is lost or restored",
        "A lost log",
        "An older log",
        "A lost checkpoint",
        "Removed entries",
        "A checkpoint behind its log",
    }
