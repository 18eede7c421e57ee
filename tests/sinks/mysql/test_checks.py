"""What the MySQL sink finds out about its server before the first batch."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.sinks.mysql.conftest import Place, new_place
from tests.support.mariadb_server import MariaDbServer
from twopc import CheckResult
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError


def examined(place: Place, **options: Any) -> list[CheckResult]:
    sink = place.unbound(**options)
    sink.bind("orders", "doctor")
    found = list(sink.check())
    sink.close()
    return found


def failed(found: list[CheckResult]) -> list[str]:
    return [each.found for each in found if each.result is CheckStatus.FAILED]


def warned(found: list[CheckResult], what: str) -> list[str]:
    return [each.found for each in found if each.result is CheckStatus.WARNING and what in each.check]


@pytest.mark.variants
@pytest.mark.parametrize("upsert_by", ["", "id"])
def test_a_table_passes_and_the_server_is_as_it_was(upsert_by: str, place: Place) -> None:
    place.create("id INT PRIMARY KEY, value TEXT NOT NULL, two INT AS (2) STORED")
    found = examined(place, upsert_by=upsert_by)
    assert failed(found) == []
    assert "the first start creates it" in " ".join(each.detail for each in found)
    tables = place.ask("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", place.database)
    assert tables == [("orders",)]  # and no marker table
    assert place.prepared() == []
    assert place.ask("SELECT * FROM {}") == []


@pytest.mark.variants
@pytest.mark.parametrize("upsert_by", ["", "value"])
def test_a_right_that_is_missing_is_found_by_trying(upsert_by: str, place: Place) -> None:
    place.create("value VARCHAR(50) PRIMARY KEY")
    place.sink().close()  # creates the marker table
    user, password = place.database, uuid.uuid4().hex
    place.ask(f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'")
    own = {"url": place.server.url("", user, password), "table": f"{place.database}.orders", "upsert_by": upsert_by}
    try:
        place.ask(f"GRANT SELECT ON {{}} TO {user}@localhost")
        [advice] = failed(examined(place, **own))
        assert "INSERT" in advice
        assert "table `" + place.database in advice
        place.ask(f"GRANT INSERT{', UPDATE' if upsert_by else ''} ON {{}} TO {user}@localhost")
        place.ask(f"GRANT SELECT ON {{markers}} TO {user}@localhost")
        [advice] = failed(examined(place, **own))
        assert "INSERT command denied" in advice
        assert "twopc_committed" in advice
        assert "Grant this user the rights" in advice
        place.ask(f"GRANT INSERT, DELETE ON {{markers}} TO {user}@localhost")
        assert failed(examined(place, **own)) == []
    finally:
        place.ask(f"DROP USER {user}@localhost")
    assert place.prepared() == []


def test_a_table_that_is_not_there_or_has_no_key_is_reported(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist or is a view"):
        examined(place, table="nowhere")
    with pytest.raises(ConfigurationError, match="no primary key or unique index"):
        examined(place, upsert_by="value")


def test_a_key_whose_gaps_are_locked_is_warned_of(place: Place) -> None:
    place.create("value VARCHAR(9) PRIMARY KEY")
    assert warned(examined(place, upsert_by="value"), "key of 'upsert_by'") == []
    place.create("id INT AUTO_INCREMENT PRIMARY KEY, value VARCHAR(9) UNIQUE")
    [advice] = warned(examined(place, upsert_by="value"), "key of 'upsert_by'")
    assert "tasks of one batch may wait for each other" in advice


def test_transactions_that_hold_rows_are_counted(place: Place) -> None:
    place.pre_commit(["a"])
    [advice] = warned(examined(place), "prepared transactions")
    assert "hold their rows locked" in advice


@pytest.mark.long
def test_a_server_that_may_lose_acknowledged_commits_is_warned_of() -> None:
    with MariaDbServer(binlog=True, innodb_flush_log_at_trx_commit=2) as server:
        place = new_place(server)
        [advice] = warned(examined(place), "durability")
        assert "innodb_flush_log_at_trx_commit=2, sync_binlog=0" in advice
        place.ask("SET GLOBAL sync_binlog = 1, GLOBAL innodb_flush_log_at_trx_commit = 1")
        found = examined(place)
        assert warned(found, "") == []
        assert "binlog_format MIXED" in found[0].detail
