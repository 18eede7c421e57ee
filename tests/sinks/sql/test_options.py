"""Options are checked before anything is connected to, and a password is seen nowhere (invariant 8)."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import twopc
from twopc import Committable
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc_sql import SqlSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sinks.sql.conftest import Place

GOOD = {"url": "postgresql+psycopg://writer:hunter2@db.example/sales", "table": "sales.orders"}


def test_the_backend_is_found_by_its_name_and_tells_its_table_without_a_password() -> None:
    sink = twopc.create_sink("sql", GOOD)
    assert isinstance(sink, SqlSink)
    assert repr(sink) == "SqlSink(table sales.orders of postgresql database 'sales' at db.example)"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"url": None}, "needs the option 'url'"),
        ({"url": "hunter2"}, "'url' of the sql sink must be SQLAlchemy's URL"),
        ({"url": "oracle+oracledb://writer:hunter2@db/sales"}, "It is proven on no others"),
        ({"url": "postgresql+psycopg2://writer:hunter2@db/sales"}, r"one of the schemes postgresql\+psycopg, mysql"),
        ({"url": "sqlite://"}, "of a server or a file"),
        ({"url": "sqlite:///:memory:"}, "of a server or a file"),
        ({"url": "sqlite:///file:x?mode=memory&uri=true"}, "of a server or a file"),
        ({"url": "duckdb:///:memory:x"}, "of a server or a file"),
        ({"table": "a.b.c"}, "'table' of the sql sink must be a name such as"),
        ({"upsert_by": "id,,day"}, "'upsert_by' of the sql sink must be names of columns"),
        ({"lock_timeout_s": "0.5"}, "'lock_timeout_s' of the sql sink must be seconds from 1 to 86400"),
        ({"upsert": "id"}, "no option 'upsert'. Did you mean 'upsert_by'"),
    ],
)
def test_a_wrong_option_is_named_and_no_password_told(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        SqlSink({**GOOD, **wrong})
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("database", ["postgresql"])
def test_the_password_is_in_no_repr_error_log_or_committable(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = place.url.password or ""
    committable = place.vote(["a"])
    told = [repr(place.sink()), str(committable.to_json())]
    calls: list[Callable[[SqlSink], object]] = [
        lambda sink: sink.open(),
        lambda sink: sink.validate(pa.schema([])),
        lambda sink: sink.seal([committable], 0.0),
        lambda sink: sink.commit_batch(0, [committable]),
        lambda sink: sink.abort(committable),
        lambda sink: list(sink.recover()),
        lambda sink: sink.begin(sink.transactional_ids.allocate(twopc.Round(1, 1), 0)),
    ]
    for call in calls:
        refused = place.unbound(url=place.url.set(password=f"{secret}-wrong"), lock_timeout_s=1)
        refused.bind("orders", "log")
        with pytest.raises(TwoPhaseCommitError, match="password authentication failed") as error:
            call(refused)
        told.append("".join(traceback.format_exception(error.value)))
    assert not [text for text in [*told, caplog.text] if secret in text]


@pytest.mark.variants
def test_a_sink_that_has_travelled_reaches_the_same_database(place: Place) -> None:
    twin = pickle.loads(pickle.dumps(place.sink()))  # noqa: S301  # our own bytes
    assert list(twin.recover()) == []
    twin.commit_batch(0, [Committable.from_json(place.vote(["a"]).to_json())])
    assert place.values() == ["a"]
