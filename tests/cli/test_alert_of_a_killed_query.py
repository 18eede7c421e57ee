"""A query is killed between decision and commit, and Prometheus raises the alert that docs/monitoring has for it, until
the query is started again.

Nothing of the shipped rules is changed. To save a minute, the entries of the log are made older than they are.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.exporter import Exporter, age
from tests.support.pages import DOCS
from tests.support.prometheus import Prometheus, program

ALERT = "TwopcBatchInDoubt"
AGE = 'twopc_oldest_in_doubt_seconds{owner="shop"}'


@pytest.mark.long
@pytest.mark.crash
def test_the_alert_of_a_killed_query_ends_when_the_query_is_started_again(shop: Any, tmp_path: Path, wait: Any) -> None:
    program("prometheus")
    rules = DOCS / "monitoring" / "alerts.yml"
    shop = replace(shop, wrecks=None)  # a kept one may be older than a minute
    shop.drive(kill_at="committing")

    def watched(exporter: Exporter, name: str) -> Prometheus:
        return Prometheus(tmp_path / name, exporter.url.split("/")[2], rules)

    with Exporter(shop.log) as exporter, watched(exporter, "at once") as prometheus:
        wait("the batch is in doubt", lambda: prometheus.ask(f"{AGE} > 0"))
        assert prometheus.ask(f"{AGE} < 60")
        assert prometheus.firing() == set()
    age(shop.log, 90)
    with Exporter(shop.log) as exporter, watched(exporter, "later") as prometheus:
        wait("the alert is raised", lambda: ALERT in prometheus.firing())
        [before_s] = prometheus.ask(AGE)
        wait("its age rises", lambda: prometheus.ask(f"{AGE} > {before_s + 1}"))
        shop.drive()
        wait("nothing is in doubt", lambda: prometheus.ask(AGE) == [0])
        wait("the alert has ended", lambda: prometheus.firing() == set())
