"""What the PostgreSQL sink finds out about its server before the first batch."""

import psycopg
import pytest

from tests.sinks.prepared_contract import ChecksContract
from tests.support.postgres_server import PostgresServer
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError
from twopc_postgres import PostgresSink


class TestChecks(ChecksContract):
    pass


@pytest.mark.long
def test_a_server_that_prepares_nothing_or_loses_what_it_acknowledged_is_told() -> None:
    with PostgresServer() as server:
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "doctor")
        for ask in (sink.open, lambda: list(sink.check())):
            with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0.* Set it to at least twice"):
                ask()
        sink.close()
    with PostgresServer(max_prepared_transactions=2, fsync="off") as server:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE orders (value text)")
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "doctor")
        [warned] = [finding for finding in sink.check() if finding.result is not CheckStatus.PASSED]
        assert (warned.result, "set both on" in warned.found) == (CheckStatus.WARNING, True)
        sink.close()
