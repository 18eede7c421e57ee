"""Run the contract of sinks against a mutant, in a separate process."""

import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.campaigns.contract.mutants import Mutant, named, put_in_place
from tests.campaigns.contract.subjects import SUBJECTS, Bench, KeyedBench, tests_of
from twopc.testing.kills import FEW

IN_MEMORY = Path("/dev/shm")  # noqa: S108  # each test has a folder of its own there
"""A folder in memory, where an fsync costs nothing. The simulation covers power cuts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the contract for a mutant.

    Attributes:
        mutant: the mutant's name.
        caught_by: the test that failed; empty if all passed.
        error: the last line of that test's error.
        is_as_it_should_be: whether it was caught; for an equivalent mutant, whether it survived.
    """

    mutant: str
    caught_by: str
    error: str
    seconds: float
    is_as_it_should_be: bool


def judge(name: str, servers: str = "") -> Verdict:
    """Run the contract against a mutant until a test fails. Requires a process that does nothing else."""
    mutant = named(name)
    logging.disable()
    os.environ.pop(FEW, None)  # some defects show after a kill at one step alone
    if IN_MEMORY.is_dir():
        tempfile.tempdir = str(IN_MEMORY)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sources, targets = Path(folder) / "sources", Path(folder) / "targets"
        sources.mkdir()
        SUBJECTS[mutant.subject].write(sources)
        apply(mutant, sources)
        sys.path.insert(0, str(sources))
        caught_by, error = _first_failure(SUBJECTS[mutant.subject].contract, targets, servers)
    as_it_should_be = bool(caught_by) is not bool(mutant.equivalent)
    return Verdict(mutant.name, caught_by, error, time.monotonic() - started, as_it_should_be)


def apply(mutant: Mutant, sources: Path) -> None:
    """Put the defect into the source that ``SUBJECTS`` has written. Importing the sink then also redirects its seams.

    Raises:
        LookupError: the code has changed.
    """
    for edit in mutant.edits:
        file = sources / edit.file
        text = file.read_text(encoding="utf-8")
        if edit.old not in text:
            raise LookupError(f"{edit.file} has no {edit.old!r}: the code has changed, so change its mutant")
        file.write_text(text.replace(edit.old, edit.new, 1), encoding="utf-8")
    if mutant.seams:
        with (sources / SUBJECTS[mutant.subject].main).open("a", encoding="utf-8") as module:
            module.write(f"\nfrom {put_in_place.__module__} import put_in_place\nput_in_place({mutant.name!r})\n")


def _first_failure(contract: type[Bench | KeyedBench], targets: Path, servers: str) -> tuple[str, str]:
    for name in tests_of(contract):
        folder = targets / name
        folder.mkdir(parents=True)
        try:
            getattr(contract(folder, servers), name)()
        except unittest.SkipTest:
            continue
        except Exception:  # noqa: BLE001  # any error counts as caught
            return name, traceback.format_exc(limit=-1).strip().splitlines()[-1]
    return "", ""


def judge_all(mutants: Sequence[Mutant], servers: str) -> Iterator[Verdict]:
    """Judge each mutant in its own process, two at a time, forked from a process without sinks and brokers."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "pandas", "pyarrow.compute", "twopc.testing.drawn"]
    )  # pyarrow's first array imports pandas
    with context.Pool(2, maxtasksperchild=1) as pool:
        yield from pool.imap(partial(judge, servers=servers), [mutant.name for mutant in mutants], chunksize=1)
