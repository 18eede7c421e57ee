"""The Iceberg and Delta sinks: beside Spark's own writers, the driver's part of a batch, growth, and with Kafka."""

import functools
import json
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import twopc
from tests.benchmarks.lake_append import Appended
from tests.benchmarks.lake_tables import create_delta, create_iceberg, delta_rows, expire_snapshots, iceberg_rows
from tests.benchmarks.measuring import Row, in_turns, ratio
from tests.benchmarks.peers import PeerMissing
from tests.benchmarks.pipeline import Load, Output, machine, ours, told_if_missing
from tests.benchmarks.protocol import drivers_ms, run_batches
from tests.support.environments import NotHere, own
from tests.support.iceberg_spark import SPARK_VERSION, iceberg_environment
from twopc import TwoPhaseCommitSink

DRIVERS_BATCHES = {4: (100, 25), 200: (20, 3)}
"""Tasks per batch → the number of batches, in a full and in a quick run."""

GROWTH_BATCHES, GROWTH_TURNS = (500, 60), (3, 1)
EXPIRED_EVERY = 100
"""Batches between two runs of ``expire_snapshots``: half of what ``twopc doctor`` warns about."""
WINDOW = 5
"""A batch's time is the median of that many batches before it and after it, where there are."""

VALUE, PAYLOAD = pa.schema({"value": pa.string()}), pa.schema({"value": pa.binary()})
KAFKA, ICEBERG, DELTA, ALL = "kafka", "iceberg", "delta", "kafka-iceberg-delta"


@dataclass(frozen=True, slots=True)
class Lake:
    """A kind of table.

    Attributes:
        create: creates a table in a folder; returns the options of its sink.
        maintain: what an operator runs regularly, by the documentation.
    """

    create: Callable[[Path | str, pa.Schema], dict[str, str]]
    rows: Callable[[Path | str], int]
    maintain: Callable[[Path | str], None]

    def sink(self, name: str, folder: Path | str, schema: pa.Schema) -> TwoPhaseCommitSink[Any]:
        """Create a table and its sink."""
        return twopc.create_sink(name, self.create(folder, schema))


LAKES = {
    ICEBERG: Lake(create_iceberg, iceberg_rows, expire_snapshots),
    DELTA: Lake(create_delta, delta_rows, lambda folder: None),  # the sink does it by itself
}


def run(quick: bool) -> list[Row]:
    """Return the ratios to Spark's writers, the driver's milliseconds, the growth, and the ratio with Kafka."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        return [
            *(row for name in LAKES for row in _append(name, root / name, quick)),
            *(_drivers_part(name, root, tasks, quick) for name in LAKES for tasks in DRIVERS_BATCHES),
            *(row for name in LAKES for row in _growth(name, root, quick)),
            *_with_kafka(quick),
        ]


def _append(name: str, folder: Path, quick: bool) -> list[Row]:
    rows: list[Row] = []
    with told_if_missing():
        found = _appended(name, folder, quick)
        what = f"append to {name} beside Spark {found.spark}"
        rows += [
            Row(f"{what}: throughput over Spark's own writer", "ratio", tuple(found.ratios), f"{name}_vs_spark"),
            Row(f"{what}: files, over Spark's", "ratio", (found.files[0] / found.files[1],)),
            Row(f"{what}: bytes, over Spark's", "ratio", (found.bytes[0] / found.bytes[1],)),
        ]
    return rows


def _appended(name: str, folder: Path, quick: bool) -> Appended:
    folder.mkdir()
    command = [*on_spark("lake_append", name, folder), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return Appended(**json.loads(done.stdout.splitlines()[-1]))


def on_spark(module: str, name: str, folder: Path) -> list[str]:
    """Return the command of a module, in an environment with the Spark for which the format has a runtime.

    Raises:
        PeerMissing: the environment can't be created.
    """
    try:
        environment = iceberg_environment() if name == ICEBERG else own()
    except NotHere as error:
        raise PeerMissing(f"Spark {SPARK_VERSION} can't be installed here: {error}") from error
    return [environment.python, "-m", f"tests.benchmarks.{module}", name, str(folder)]


def _drivers_part(name: str, root: Path, tasks: int, quick: bool) -> Row:
    """Measure from the last vote to the end of the batch."""
    folder = root / uuid.uuid4().hex
    batches = run_batches(LAKES[name].sink(name, folder, VALUE), folder, tasks, DRIVERS_BATCHES[tasks][quick])
    took = tuple(map(drivers_ms, batches))
    return Row(f"driver's part of a batch into {name}, {tasks} tasks", "ms", took, f"{name}_ms_{tasks}")


def _growth(name: str, root: Path, quick: bool) -> list[Row]:
    """Measure whole batches of 4 tasks, with maintenance between them."""
    batches, lake = GROWTH_BATCHES[quick], LAKES[name]
    tenths, lasts = [], []
    for _ in range(GROWTH_TURNS[quick]):
        folder, took_ms = root / uuid.uuid4().hex, list[float]()
        started = time.perf_counter()
        for number, _ in enumerate(run_batches(lake.sink(name, folder, VALUE), folder, 4, batches), 1):
            took_ms.append((time.perf_counter() - started) * 1000)
            if number % EXPIRED_EVERY == 0:
                lake.maintain(folder)
            started = time.perf_counter()
        tenths.append(statistics.median(took_ms[9 - WINDOW : 10 + WINDOW]))
        lasts.append(statistics.median(took_ms[-1 - 2 * WINDOW :]))
    key = None if quick else f"{name}_growth_500"
    figures = {"last": lasts, "tenth": tenths}
    return [
        *(Row(f"the {which} of {batches} batches into {name}", "ms", tuple(v)) for which, v in figures.items()),
        ratio(f"the last of {batches} batches into {name}, over the tenth", figures, "last", "tenth", key),
    ]


def _with_kafka(quick: bool) -> list[Row]:
    """Compare Kafka and both tables in one decision with the slowest of the three alone."""
    outputs = {
        name: Output(functools.partial(lake.sink, name, schema=PAYLOAD), lake.rows) for name, lake in LAKES.items()
    }
    contestants = {
        KAFKA: ours({}),
        **{name: ours(None, **{name: output}) for name, output in outputs.items()},
        ALL: ours({}, **outputs),
    }
    load = Load("lake", *((1_000_000, 250_000) if quick else (8_000_000, 2_000_000)))
    with machine(load, contestants) as running:
        turns = in_turns(running.turns(load), 2 if quick else 5)
    rates = {name: [turn.rate for turn in of_turns] for name, of_turns in turns.items()}
    slowest = [min(alone) for alone in zip(*(rates[name] for name in (KAFKA, ICEBERG, DELTA)), strict=True)]
    what = "Kafka, Iceberg and Delta, over the slowest alone"
    return [
        *(Row(f"Kafka to {name}", "records/s", tuple(of_turns)) for name, of_turns in rates.items()),
        ratio(what, rates | {"slowest": slowest}, ALL, "slowest", "lake_multi_vs_slowest"),
    ]
