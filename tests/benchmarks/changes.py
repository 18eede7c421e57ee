"""Changes by a key: random ones into a large table, beside delta-rs's merge and Spark's; and equality upserts beside
appends.

A change is measured from the decision to the end of the commit, in a process of its own, with the bytes that it writes
and the peak of the process's memory. Each turn changes other rows, and the changes of earlier ones stay.
"""

from __future__ import annotations

import functools
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from pyiceberg.catalog import load_catalog

import twopc
from tests.benchmarks import merging
from tests.benchmarks.lake import measured_by_spark
from tests.benchmarks.lake_tables import create_iceberg, iceberg_rows
from tests.benchmarks.measuring import Row, alone, in_turns, ratio
from tests.benchmarks.pipeline import told_if_missing
from twopc import Participant, Round
from twopc.keyed import KeyedSink

CHANGED = 10_000
TURNS = (5, 2)
"""In a full and in a quick run, as the pairs below."""
ROWS, LARGE = (10_000_000, 1_000_000), (100_000_000, 4_000_000)
"""How many rows a table has."""
FILES = 10
"""How many files a table of ``ROWS`` has. A larger one has more of that size."""

UPSERTED, AT_ONCE = (4_000_000, 400_000), 10_000
"""How many rows are upserted and appended; and records per Arrow batch, by Spark's default."""

MIB = 2**20
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.float64()})
DELTA, POSITIONS, EQUALITY = "Delta", "Iceberg, positions", "Iceberg, equality"
OWN = {DELTA: "delta", POSITIONS: "iceberg", EQUALITY: "iceberg"}
KEYS = {DELTA: "changes_delta", POSITIONS: "changes_positions"}
"""The beginnings of keys in the report."""
THEIRS = "delta-rs's merge"

Turns = Mapping[str, Sequence[Mapping[str, float]]]


def run(quick: bool) -> list[Row]:
    """Return times, bytes and memory of changes beside delta-rs, and the ratio of equality upserts to appends."""
    rows = ROWS[quick]
    with tempfile.TemporaryDirectory() as folder:
        found = in_turns(_contestants(Path(folder), [*OWN, THEIRS], rows, quick), TURNS[quick])
        appends = in_turns(
            {how: functools.partial(alone, _written, folder, how, UPSERTED[quick]) for how in ("append", "upsert")},
            TURNS[quick],
        )
    seconds, what = _seconds(found), _what(rows)
    return [
        *_figures(found, what),
        *(ratio(f"{what}: {name}, over {THEIRS}", seconds, name, THEIRS, f"{KEYS[name]}_vs_merge") for name in KEYS),
        *(Row(f"{how} of {UPSERTED[quick]} rows to Iceberg", "s", tuple(took)) for how, took in appends.items()),
        ratio(
            f"equality upserts of {UPSERTED[quick]} rows: throughput over appends",
            appends,
            "append",
            "upsert",
            "upserts_vs_appends",
        ),
    ]


def run_beside_spark(quick: bool) -> list[Row]:
    """Return the times of changes over those of Spark's ``MERGE``, with a table of its own."""
    rows, turns, figures = ROWS[quick], TURNS[quick], list[Row]()
    for name, key in KEYS.items():
        with told_if_missing(), tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for place, parts in (
                (merging.ROWS, _parts(rows, quick)),
                (merging.CHANGES, (_changes(seed, rows) for seed in range(1000, 1001 + turns))),
            ):
                (folder / place).mkdir()
                for number, part in enumerate(parts):
                    pq.write_table(part, folder / place / f"{number:04d}.parquet")
            spark = measured_by_spark("merging", OWN[name], folder)
            theirs = f"Spark's MERGE, {name}"
            seconds = {theirs: spark, **_seconds(in_turns(_contestants(folder, [name], rows, quick), turns))}
            what = _what(rows)
            figures += [
                *(Row(f"{what}, {contestant}", "s", tuple(took)) for contestant, took in seconds.items()),
                ratio(f"{what}: {name}, over {theirs}", seconds, name, theirs, f"{key}_vs_spark"),
            ]
    return figures


def run_large(quick: bool) -> list[Row]:
    """Return times, bytes and memory of changes of a table ten times as large, and the times over the smaller one's."""
    figures = list[Row]()
    for name, key in KEYS.items():
        with tempfile.TemporaryDirectory() as folder:
            of_sizes = {_what(rows): rows for rows in (ROWS[quick], LARGE[quick])}
            contestants = {
                what: _contestants(Path(folder, str(rows)), [name], rows, quick)[name]
                for what, rows in of_sizes.items()
            }
            found = in_turns(contestants, TURNS[quick])
        small, large = of_sizes
        figures += [
            *_figures(found, name),
            ratio(f"{name}: {large}, over {small}", _seconds(found), large, small, f"{key}_growth"),
        ]
    return figures


def _what(rows: int) -> str:
    return f"{CHANGED} changes into {rows} rows"


def _seconds(found: Turns) -> dict[str, list[float]]:
    return {name: [turn["s"] for turn in turns] for name, turns in found.items()}


def _figures(found: Turns, what: str) -> Iterator[Row]:
    for unit, of in (("s", ""), ("MB", ": written"), ("MiB", ": memory")):
        for name, turns in found.items():
            yield Row(f"{what}, {name}{of}", unit, tuple(turn[unit] for turn in turns))


def _contestants(
    folder: Path, names: Sequence[str], rows: int, quick: bool
) -> dict[str, Callable[[], dict[str, float]]]:
    """Create a table for each of the contestants."""
    seeds = itertools.count()

    def contestant(name: str) -> Callable[[], dict[str, float]]:
        options = alone(_create, name, folder / str(names.index(name)), rows, quick)
        return lambda: alone(_change, name, options, next(seeds), rows)

    return {name: contestant(name) for name in names}


def _create(name: str, folder: Path, rows: int, quick: bool) -> dict[str, str]:
    """Create a table. Return the options of its sink."""
    folder.mkdir(parents=True)
    if OWN.get(name) == "iceberg":
        options = create_iceberg(folder, SCHEMA)
        catalog = load_catalog(
            "default", **{n.removeprefix("catalog."): v for n, v in options.items() if "." in n and n != "table"}
        )
        table = catalog.load_table(options["table"])
        for part in _parts(rows, quick):
            table.append(part)
        catalog.close()
        return options | {"upsert_by": "id", "deletes": "position" if name == POSITIONS else "equality"}
    DeltaTable.create(
        folder / "delta",
        Schema.from_arrow(SCHEMA),
        configuration={"delta.enableDeletionVectors": str(name != THEIRS).lower()},
    )
    for part in _parts(rows, quick):
        write_deltalake(folder / "delta", part, mode="append")
    return {"path": f"{folder}/delta", "upsert_by": "id"}


def _parts(rows: int, quick: bool) -> Iterator[pa.Table]:
    """Yield the content of each file of a table. Their ids are shuffled."""
    rng = np.random.default_rng(1)
    for ids in np.array_split(rng.permutation(rows), FILES * rows // ROWS[quick]):
        yield _rows(rng, ids)


def _changes(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return _rows(rng, rng.choice(rows, CHANGED, replace=False))


def _rows(rng: np.random.Generator, ids: Any) -> pa.Table:
    names = pa.array([f"name {number}" for number in range(1000)]).take(pa.array(ids % 1000))
    return pa.table({"id": ids, "name": names, "v": rng.random(len(ids))}, schema=SCHEMA)


def _change(name: str, options: Mapping[str, str], seed: int, rows: int) -> dict[str, float]:
    """Apply changes once."""
    folder = Path(options.get("path") or re.sub(r"^sqlite:///", "", options["catalog.uri"])).parent
    changes = _changes(seed, rows)
    before = _bytes(folder)
    if name == THEIRS:
        started = time.perf_counter()
        properties = CommitProperties(app_transactions=[Transaction("benchmark", seed)])
        merge = DeltaTable(options["path"]).merge(changes, "t.id = s.id", "s", "t", commit_properties=properties)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        took = time.perf_counter() - started
    else:
        sink: Any = twopc.create_sink(OWN[name], options)
        batch = _decided(sink, [changes], seed)
        started = time.perf_counter()
        sink.commit_batch(seed, batch)
        took = time.perf_counter() - started
        sink.complete(seed, batch)
    return {"s": took, "MB": (_bytes(folder) - before) / 1e6, "MiB": _peak_mib()}


def _decided(sink: KeyedSink[Any], tables: list[pa.Table], batch_id: int) -> Any:
    sink.bind("rows", "benchmark")
    sink.open()
    with Participant({"rows": sink}, Round(1, batch_id), partition=0) as participant:
        for table in tables:
            for batch in table.to_batches(AT_ONCE):
                participant.write("rows", batch)
        return sink.seal([participant.pre_commit()["rows"]], 0.0)


def _written(folder: str, how: str, rows: int) -> float:
    """Return the seconds of a batch from its first record to the end of its commit, into a table of its own."""
    made = tempfile.mkdtemp(dir=folder)
    options = create_iceberg(made, SCHEMA) | ({"upsert_by": "id"} if how == "upsert" else {})
    rng = np.random.default_rng(1)
    table = _rows(rng, rng.permutation(rows))
    sink: Any = twopc.create_sink("iceberg", options)
    started = time.perf_counter()
    sink.commit_batch(0, _decided(sink, [table], 0))
    took = time.perf_counter() - started
    assert how == "upsert" or iceberg_rows(made) == rows  # which does not read equality deletes
    return took


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _peak_mib() -> float:
    """Return the peak memory of this process. ``getrusage`` would return the parent's peak if that was higher."""
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) * 1024 / MIB
