"""``make mutants``: put each defect into its sink, and report which test of ``SinkContract`` catches it.

Runs the mutants whose names contain one of the given parts, or all mutants. Mutants of the Kafka sink need a broker;
one is started if no servers are given.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.campaigns.contract.judging import Verdict, judge_all
from tests.campaigns.contract.mutants import MUTANTS, Mutant
from tests.campaigns.report import Report


@contextlib.contextmanager
def _servers(given: str, mutants: Sequence[Mutant]) -> Iterator[str]:
    if given or not any(mutant.subject == "kafka" for mutant in mutants):
        yield given
        return
    from twopc_kafka_broker import KafkaBroker

    with KafkaBroker() as broker:
        yield broker.bootstrap_servers


def main(arguments: Sequence[str]) -> int:
    """Run the mutants. Return the exit code: 1 if any mutant is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns contract", description=__doc__)
    parser.add_argument("--servers", default="", help="Kafka's bootstrap servers")
    parser.add_argument("--report", type=Path, default=Path("build/contract/mutants.json"))
    parser.add_argument("names", nargs="*", help="parts of the mutants' names")
    given = parser.parse_args(arguments)
    mutants = [mutant for mutant in MUTANTS if any(name in mutant.name for name in given.names or [""])]
    started, verdicts = time.monotonic(), []
    with _servers(given.servers, mutants) as servers:
        for mutant, verdict in zip(mutants, judge_all(mutants, servers), strict=True):
            print(_line(mutant, verdict), flush=True)
            verdicts.append(verdict)
    report = Report(given.report)
    report.write([asdict(verdict) for verdict in verdicts])
    right = sum(verdict.is_as_it_should_be for verdict in verdicts)
    seconds = time.monotonic() - started
    summary = f"{right} of {len(mutants)} mutants as expected in {seconds:.0f} s"
    return report.end(summary, failed=right < len(mutants))


def _line(mutant: Mutant, verdict: Verdict) -> str:
    what = f"caught by {verdict.caught_by}" if verdict.caught_by else "survives"
    expected = f" (equivalent: {mutant.equivalent})" if mutant.equivalent else ""
    mark = "ok  " if verdict.is_as_it_should_be else "WRONG"
    return f"{mark} {verdict.seconds:5.1f} s  {mutant.name}: {what}{expected}"
