"""What the MySQL sink finds out about its server before the first batch."""

import pytest

from tests.sinks.mysql.conftest import Place, new_place
from tests.sinks.prepared_contract import ChecksContract, checked, warned
from tests.support.mariadb_server import MariaDbServer


class TestChecks(ChecksContract):
    pass


def test_a_key_whose_gaps_are_locked_is_warned_of(place: Place) -> None:
    place.create("value VARCHAR(9) PRIMARY KEY")
    assert warned(checked(place, upsert_by="value")) == []
    place.create("id INT AUTO_INCREMENT PRIMARY KEY, value VARCHAR(9) UNIQUE")
    [warning] = warned(checked(place, upsert_by="value"))
    assert "tasks of one batch may wait for each other" in warning.found


@pytest.mark.long
def test_a_server_that_may_lose_acknowledged_commits_is_warned_of() -> None:
    with MariaDbServer(binlog=True, innodb_flush_log_at_trx_commit=2) as server:
        place = new_place(server)
        [warning] = warned(checked(place))
        assert "innodb_flush_log_at_trx_commit=2, sync_binlog=0" in warning.found
        place.ask("SET GLOBAL sync_binlog = 1, GLOBAL innodb_flush_log_at_trx_commit = 1")
        found = checked(place)
        assert warned(found) == []
        assert "binlog_format MIXED" in found[0].detail
