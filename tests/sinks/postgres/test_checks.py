"""What the PostgreSQL sink finds out about its server before the first batch."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

from tests.sinks.postgres.conftest import Place
from tests.support.postgres_server import PostgresServer
from twopc import CheckResult
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError
from twopc_postgres import PostgresSink


def examined(place: Place, **options: Any) -> list[CheckResult]:
    sink = place.unbound(**options)
    sink.bind("orders", "doctor")
    findings = list(sink.check())
    sink.close()
    return findings


def failed(findings: list[CheckResult]) -> list[str]:
    return [finding.found for finding in findings if finding.result is CheckStatus.FAILED]


@pytest.mark.variants
@pytest.mark.parametrize("upsert_by", ["", "id"])
def test_a_table_passes_and_the_server_is_as_it_was(upsert_by: str, place: Place) -> None:
    place.create("id int PRIMARY KEY, value text NOT NULL, days int[], two int GENERATED ALWAYS AS (2) STORED")
    assert failed(examined(place, upsert_by=upsert_by)) == []
    tables = place.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", place.schema)
    assert tables == [("orders",)]  # and no marker table
    assert place.prepared() == []


def test_a_right_that_is_missing_is_found_by_trying(place: Place) -> None:
    place.sink().close()  # creates the marker table
    role, password = place.schema, uuid.uuid4().hex
    place.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'; GRANT USAGE ON SCHEMA {place.schema} TO {role}")
    own = psycopg.conninfo.make_conninfo(place.server.conninfo, user=role, password=password)
    try:
        assert "permission denied for table orders" in "".join(failed(examined(place, conninfo=own)))
        place.ask(f"GRANT INSERT ON {{}} TO {role}")
        [advice] = failed(examined(place, conninfo=own))
        assert "permission denied for table twopc_committed" in advice
        assert "Grant this role the rights" in advice
        place.ask(f"GRANT SELECT, INSERT, DELETE ON {{markers}} TO {role}")
        assert failed(examined(place, conninfo=own)) == []
    finally:
        place.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert place.prepared() == []


def test_a_table_that_is_not_there_or_has_no_key_is_told(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist. Create it"):
        examined(place, table=f"{place.schema}.nowhere")
    with pytest.raises(ConfigurationError, match="no primary key or unique index"):
        examined(place, upsert_by="value")


@pytest.mark.long
def test_a_server_that_prepares_nothing_or_loses_what_it_acknowledged_is_told() -> None:
    with PostgresServer() as server:
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "doctor")
        with pytest.raises(ConfigurationError, match="max_prepared_transactions is 0"):
            list(sink.check())
        sink.close()
    with PostgresServer(max_prepared_transactions=2, fsync="off") as server:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE orders (value text)")
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "doctor")
        [warned] = [finding for finding in sink.check() if finding.result is not CheckStatus.PASSED]
        assert (warned.result, "set both on" in warned.found) == (CheckStatus.WARNING, True)
        sink.close()
