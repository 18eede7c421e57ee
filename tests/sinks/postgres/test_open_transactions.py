"""What PostgreSQL reports about prepared transactions, for monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place


@pytest.mark.long
def test_prepared_transactions_are_counted_with_the_age_of_the_oldest(place: Place) -> None:
    place.create("value text")
    sink: Any = place.sink()
    assert sink.open_transactions().count == 0
    assert sink.open_transactions().oldest_s == 0
    written = [place.pre_commit(["a"], partition=partition) for partition in (0, 1)]
    first = sink.open_transactions()
    second = sink.open_transactions()
    assert first.count == len(written)
    assert 0 < first.oldest_s < second.oldest_s < 60
    assert second.timeout_s is None
    sink.abort(written[0])
    assert sink.open_transactions().count == 1
