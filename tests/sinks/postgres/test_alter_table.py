"""``ALTER TABLE`` beside a prepared transaction, as ``docs/change-a-query.md`` has it."""

from __future__ import annotations

import psycopg
import pytest

from tests.sinks.postgres.conftest import Place


def test_alter_table_waits_for_a_prepared_transaction_and_changes_the_table_when_that_is_committed(
    place: Place,
) -> None:
    committable = place.pre_commit(["a"])
    with psycopg.connect(place.server.conninfo, autocommit=True) as operator:
        operator.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            operator.execute(f"ALTER TABLE {place.table} ADD COLUMN note text")
        place.sink().commit(committable)
        operator.execute(f"ALTER TABLE {place.table} ADD COLUMN note text")
    assert place.values() == ["a"]
