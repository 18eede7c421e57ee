"""Options are checked before anything is connected to, and a password is seen nowhere (invariant 8)."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

import twopc
from twopc import Committable
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc_postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sinks.postgres.conftest import Place

GOOD = {"conninfo": "postgresql://writer:hunter2@db.example/sales", "table": "orders"}


def test_the_backend_is_found_by_its_name() -> None:
    assert isinstance(twopc.create_sink("postgres", GOOD), PostgresSink)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"conninfo": None}, "needs the option 'conninfo'"),
        ({"conninfo": "host=db hunter2"}, "'conninfo' of the postgres sink must be a libpq connection string"),
        ({"conninfo": "postgresql://writer:hun@ter2@db.example/sales"}, "percent"),
        ({"conninfo": "postgresql://writer:hunter2/x@db.example/sales"}, "percent"),
        ({"table": ""}, "needs the option 'table'"),
        ({"table": "a.b.c"}, "'table' of the postgres sink must be a name such as"),
        ({"upsert_by": "id,,day"}, "'upsert_by' of the postgres sink must be names of columns"),
        ({"upsert_by": ""}, "'upsert_by' of the postgres sink must be names of columns"),
        ({"lock_timeout_s": "soon"}, "'lock_timeout_s' of the postgres sink must be seconds from 0.001 to 86400"),
        ({"lock_timeout_s": "nan"}, "'lock_timeout_s' of the postgres sink must be seconds"),
        ({"upsert": "id"}, "no option 'upsert'. Did you mean 'upsert_by'"),
    ],
)
def test_a_wrong_option_is_named_and_no_password_told(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        PostgresSink({**GOOD, **wrong})
    assert "ter2" not in "".join(traceback.format_exception(refused.value))


def test_the_password_is_in_no_repr_error_log_or_committable(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = place.server.password
    committable = place.pre_commit(["a"])
    told = [repr(place.sink()), repr(committable), str(committable.to_json())]
    wrong = f"{secret}-wrong"
    calls: list[Callable[[PostgresSink], object]] = [
        lambda sink: sink.open(),
        lambda sink: sink.validate(pa.schema([])),
        lambda sink: sink.commit(committable),
        lambda sink: sink.abort(committable),
        lambda sink: list(sink.recover()),
        lambda sink: sink.begin(sink.transactional_ids.allocate(twopc.Round(1, 1), 0)),
    ]
    for call in calls:
        refused = place.unbound(conninfo=psycopg.conninfo.make_conninfo(place.server.conninfo, password=wrong))
        refused.bind("orders", "log")
        with pytest.raises(TwoPhaseCommitError, match="password authentication failed") as error:
            call(refused)
        told.append("".join(traceback.format_exception(error.value)))
    assert len(told) == 3 + len(calls)
    assert not [text for text in [*told, caplog.text] if secret in text]


def test_a_sink_that_has_travelled_reaches_the_same_server(place: Place) -> None:
    twin = pickle.loads(pickle.dumps(place.sink()))  # noqa: S301  # our own bytes
    assert list(twin.recover()) == []
    twin.commit(Committable.from_json(place.pre_commit(["a"]).to_json()))
    assert place.values() == ["a"]
