"""The specification of the protocol holds within small bounds, and each defect that is put into it shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.model import traces as traced
from tests.campaigns.model.checks import HOLES, SHORT, Check
from tests.campaigns.model.tlc import run
from tests.campaigns.simulation.mutants import MUTANTS
from tests.campaigns.simulation.schedule import simulated


def first(checks: Sequence[Check]) -> Sequence[Any]:
    """The first one for every change: these check the specification, which changes with no line of code."""
    return [checks[0], *(pytest.param(check, marks=pytest.mark.long) for check in checks[1:])]


@pytest.mark.long
@pytest.mark.parametrize("check", first(SHORT), ids=str)
def test_every_promise_holds(check: Check, tmp_path: Path) -> None:
    outcome = run(check, tmp_path / "model", workers=1)
    assert outcome.violated is None
    assert outcome.states > 100


@pytest.mark.long
@pytest.mark.parametrize("check", first(HOLES), ids=lambda check: check.hole)
def test_a_defect_leads_to_a_counterexample(check: Check, tmp_path: Path) -> None:
    outcome = run(check, tmp_path / "model", workers=1)
    assert outcome.violated in (["liveness"] if check.liveness else check.invariants)
    assert outcome.steps > 5


@pytest.mark.long
def test_what_the_code_does_in_the_simulation_is_a_behavior_of_the_specification(tmp_path: Path) -> None:
    with simulated():
        traces = list(traced.drawn(25))
    rejected = [str(verdict) for verdict in traced.check(traces, tmp_path / "traces") if verdict.rejected]
    assert rejected == []
    assert min(len(trace.events) for trace in traces) > 20


@pytest.mark.long
def test_what_the_code_does_with_a_defect_is_not(tmp_path: Path) -> None:
    with simulated():
        mutants, traces = zip(*traced.of_mutants(seeds=0), strict=True)
    verdicts = {
        mutant.name: found for mutant, found in zip(mutants, traced.check(traces, tmp_path / "traces"), strict=True)
    }
    assert {name for name, verdict in verdicts.items() if verdict.rejected is None} == traced.UNNOTICED.keys()
    shown = str(verdicts["phase two is left out"]).splitlines()
    assert "no step of the specification: step 46: list" in shown[0]
    assert "step 45: decide" in shown[-1]


def test_a_defect_has_traces_or_a_reason_why_not() -> None:
    with simulated():
        with_traces = {mutant.name for mutant, _ in traced.of_mutants(seeds=0)}
    assert with_traces | traced.without_traces().keys() == {mutant.name for mutant in MUTANTS}
    assert not with_traces & traced.without_traces().keys()
