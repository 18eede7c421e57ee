"""Each defect put into a sink fails a test of ``SinkContract``."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.campaigns.contract.judging import apply
from tests.campaigns.contract.mutants import KAFKA, MUTANTS, Mutant
from tests.campaigns.contract.subjects import SUBJECTS
from tests.campaigns.seams import patched
from tests.support.pages import ROOT
from twopc_kafka_broker import KafkaBroker

Verdicts: TypeAlias = "dict[str, dict[str, Any]]"

CAUGHT = [mutant for mutant in MUTANTS if mutant.subject != "kafka" and not mutant.equivalent]
"""``make mutants`` also tries the others. A mutant that no test can catch runs the whole contract."""

CHEAP = [mutant for mutant in CAUGHT if mutant.subject.endswith("memory")]  # no process is killed for them
DEAR = [mutant for mutant in CAUGHT if not mutant.subject.endswith("memory")]
OF_KAFKA = KAFKA[:2]


def verdicts(mutants: Iterable[Mutant], folder: Path, servers: str = "") -> Verdicts:
    """Judge mutants in a new process. This one has imported the sinks, and a fork would lose its threads."""
    report = folder / "report.json"
    names = [mutant.name for mutant in mutants]
    given = ["--report", str(report), "--servers", servers, *names]
    command = [sys.executable, "-m", "tests.campaigns", "contract", *given]
    paths = [str(ROOT), *(str(plugin) for plugin in ROOT.glob("plugins/*")), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, timeout=220, check=False)
    return {verdict["mutant"]: verdict for verdict in json.loads(report.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def of_cheap_ones(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return verdicts(CHEAP, tmp_path_factory.mktemp("cheap"))


@pytest.fixture(scope="module")
def of_dear_ones(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return verdicts(DEAR, tmp_path_factory.mktemp("dear"))


@pytest.fixture(scope="module")
def of_kafka(tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker) -> Verdicts:
    return verdicts(OF_KAFKA, tmp_path_factory.mktemp("kafka"), kafka_broker.bootstrap_servers)


@pytest.mark.parametrize("mutant", CHEAP, ids=lambda mutant: mutant.name)
def test_a_defect_in_a_sink_is_caught(mutant: Mutant, of_cheap_ones: Verdicts) -> None:
    assert of_cheap_ones[mutant.name]["caught_by"]


@pytest.mark.long
@pytest.mark.parametrize("mutant", DEAR, ids=lambda mutant: mutant.name)
def test_a_defect_in_a_sink_of_another_system_is_caught(mutant: Mutant, of_dear_ones: Verdicts) -> None:
    assert of_dear_ones[mutant.name]["caught_by"]


@pytest.mark.long
@pytest.mark.parametrize("mutant", OF_KAFKA, ids=lambda mutant: mutant.name)
def test_a_defect_in_the_kafka_sink_is_caught(mutant: Mutant, of_kafka: Verdicts) -> None:
    assert of_kafka[mutant.name]["caught_by"]


def test_every_subject_has_mutants_and_every_mutant_a_subject() -> None:
    assert {mutant.subject for mutant in MUTANTS} == {*SUBJECTS}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_mutant_fits_the_code_as_it_is(subject: str, tmp_path: Path) -> None:
    for number, mutant in enumerate(each for each in MUTANTS if each.subject == subject):
        sources = tmp_path / f"{number}"
        sources.mkdir()
        SUBJECTS[subject].write(sources)
        apply(mutant, sources)
        with patched(mutant.seams):
            """Check that each seam exists."""


def test_mutant_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
