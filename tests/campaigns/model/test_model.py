"""The specification of the protocol holds within small bounds, and each defect that is put into it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.model.checks import HOLES, INVARIANTS, SHORT, Check
from tests.campaigns.model.tlc import run


@pytest.mark.parametrize("check", SHORT, ids=str)
def test_every_promise_holds(check: Check, tmp_path: Path) -> None:
    outcome = run(check, tmp_path / "model", workers=1)
    assert outcome.violated is None
    assert outcome.states > 1_000


@pytest.mark.parametrize("check", HOLES, ids=lambda check: check.hole)
def test_a_defect_leads_to_a_counterexample(check: Check, tmp_path: Path) -> None:
    outcome = run(check, tmp_path / "model", workers=1)
    assert outcome.violated in (["liveness"] if check.liveness else INVARIANTS)
    assert outcome.steps > 5
