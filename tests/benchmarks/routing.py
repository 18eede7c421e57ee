"""What conditions and hashes cost: two outputs that share the rows, and one whose records could be computed again, each
over one output that gets all rows. All write to Kafka, in turns, in one Spark session."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import twopc
from tests.benchmarks.measuring import Row, in_turns, ratio
from tests.benchmarks.pipeline import Contestant, Load, cpu, machine
from twopc.spark import ForeachBatch, Output, foreach_batch

ONE, SHARED, HASHED = "one", "shared", "hashed"

SHARES = ("substring(value, 1, 1) < X'35'", "substring(value, 1, 1) >= X'35'")
"""The values begin with digits, of which four in nine are below 5."""


def run(quick: bool) -> list[Row]:
    """Return the throughputs and their ratios."""
    contestants = {
        ONE: _writes({"all": None}),
        SHARED: _writes(dict(zip(("low", "high"), SHARES, strict=True))),
        HASHED: _writes({"all": None}, on_loss="recompute"),
    }
    load = Load("large", *((1_000_000, 250_000) if quick else (8_000_000, 2_000_000)))
    with machine(load, contestants) as running:
        in_turns(running.turns(load), 0 if quick else 1)  # warms up
        turns = in_turns(running.turns(load), 2 if quick else 7)
    rates = {name: [turn.rate for turn in of_turns] for name, of_turns in turns.items()}
    cpu_us = {name: [sum(turn.cpu_us.values()) for turn in of_turns] for name, of_turns in turns.items()}
    return [
        *(Row(name, "records/s", tuple(of_turns)) for name, of_turns in rates.items()),
        *cpu(turns),
        ratio("two outputs that share the rows, over one", rates, SHARED, ONE, "routed_vs_one"),
        ratio("one with hashes, over one without", rates, HASHED, ONE, "recompute_cost"),
        ratio("CPU of one output, over that of two that share the rows", cpu_us, ONE, SHARED, "routed_vs_one_cpu"),
        ratio("CPU without hashes, over that with them", cpu_us, ONE, HASHED, "recompute_cost_cpu"),
    ]


def _writes(conditions: Mapping[str, str | None], on_loss: Any = "stop") -> Contestant:
    """Return a contestant with an output per condition. All of them write to one topic."""

    def start(servers: str, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, ForeachBatch]:
        where = {"bootstrap.servers": servers, "topic": target}
        outputs = {each: Output(twopc.create_sink("kafka", where), where=rows) for each, rows in conditions.items()}
        write = foreach_batch(outputs, log=f"{name}/log", on_loss=on_loss)
        return frame.writeStream.foreachBatch(write), write

    return Contestant(start)
