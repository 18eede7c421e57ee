"""A part of ``make simulate``: every fault at every step, some pairs, and the first seeds."""

from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.campaigns.seams import Seam, nothing
from tests.campaigns.simulation.catching import applied, catch, recorded
from tests.campaigns.simulation.exploration import FAILING, SMALL, SMALLEST, Failure, pairs, shortest, singles
from tests.campaigns.simulation.mutants import MUTANTS, Mutant
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.schedule import run_schedule, run_seed, simulated
from tests.campaigns.simulation.world import Fault


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with simulated():
        yield


def failures(scenario: Scenario, schedules: Iterable[Mapping[int, Fault]]) -> list[str]:
    found = []
    for schedule in schedules:
        result = run_schedule(scenario, schedule)
        if result.violation:
            found.append(str(shortest(result)))
    return found


@pytest.mark.long
@pytest.mark.parametrize("scenario", [SMALL[0], *FAILING, *SMALL[-4:-2], SMALL[-1]], ids=str)
def test_no_fault_at_any_step_breaks_a_promise(scenario: Scenario) -> None:
    assert failures(scenario, singles(scenario)) == []


@pytest.mark.long
@pytest.mark.parametrize("scenario", SMALLEST, ids=str)
def test_no_second_fault_after_some_first_breaks_a_promise(scenario: Scenario) -> None:
    """One in four hundred first faults. ``make simulate`` tries all."""
    assert failures(scenario, pairs(scenario, stride=401, offset=7)) == []


DAMAGED = (600403396, 600409667, 600696593)
"""Seeds in which a driver continues on a restored checkpoint, so that an older batch is missing in it."""


TWO_LOST = (944, 11801, 21223)
"""Seeds in which two decided batches are lost, of which Spark repeats only the newer one."""


@pytest.mark.long
def test_no_seed_breaks_a_promise() -> None:
    for seed in (*range(800), *DAMAGED, *TWO_LOST):
        result = run_seed(seed)
        assert result.violation is None, str(shortest(result, seed))


def test_a_seed_reproduces_its_run_and_so_does_the_schedule_that_it_drew() -> None:
    for seed in range(40):
        first = run_seed(seed)
        assert run_seed(seed) == first
        assert run_schedule(first.scenario, first.schedule) == first


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_in_the_code_is_caught(mutant: Mutant) -> None:
    """By the schedule in ``caught.jsonl``, or else by a search of some seconds. ``make mutants`` updates the file."""
    known = recorded().get(mutant.name)
    assert (known and known.still_holds_for(mutant)) or catch(mutant)


def test_a_mutant_whose_code_was_renamed_raises_an_error() -> None:
    renamed = Mutant("renamed", (Seam("twopc.coordinator:Coordinator.renamed", nothing),))
    with pytest.raises(LookupError, match="there is no twopc"), applied(renamed):
        """Not reached."""


@pytest.mark.long
def test_a_failure_is_cut_down_to_the_faults_that_matter() -> None:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == "recovery commits nothing"]
    caught = catch(mutant)
    assert caught
    scenario, needed = caught.failure.scenario, dict(caught.failure.schedule)
    with applied(mutant):
        tried = (run_schedule(scenario, {**needed, step: Fault.LOST_BEFORE}) for step in range(max(needed)))
        with_more = next(result for result in tried if result.violation and len(result.schedule) > len(needed))
        assert shortest(with_more).schedule == needed


@pytest.mark.long
@pytest.mark.parametrize("counts_on", [True, False])
def test_a_lost_task_of_an_earlier_stage_attempt_rolls_back_nothing_that_is_decided(counts_on: bool) -> None:
    assert list(stage_retries(Scenario(sinks="k", stage_retries_count_on=counts_on))) == []


def stage_retries(scenario: Scenario) -> Iterator[Failure]:
    """Restart the stage while a task is about to start, and let the driver sleep between decision and commit."""
    trace = run_schedule(scenario, {}, traced=True).trace
    for first, step in enumerate(trace):
        if Fault.STAGE_RETRY in step.faults:
            second = run_schedule(scenario, {first: Fault.STAGE_RETRY}, traced=True).trace
            for number in range(first + 1, len(second)):
                result = run_schedule(scenario, {first: Fault.STAGE_RETRY, number: Fault.SLEEP_LONG})
                if result.violation:
                    yield Failure(scenario, result.schedule, result.violation)
