"""Changes by a key: random ones into a large table, beside delta-rs's merge; and equality upserts beside appends.

A change is measured from the decision to the end of the commit, in a process of its own, with the bytes that it writes
and the peak of the process's memory. Each turn changes other rows, and the changes of earlier ones stay.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from pyiceberg.catalog import load_catalog

import twopc
from tests.benchmarks.lake_tables import create_iceberg
from tests.benchmarks.measuring import Row, in_turns, ratio
from twopc import Participant, Round
from twopc.keyed import KeyedSink

FILES, CHANGED = 10, 10_000
ROWS = (10_000_000, 1_000_000)
"""How many rows the table has, in a full and in a quick run."""

UPSERTED, AT_ONCE = (4_000_000, 400_000), 10_000
"""How many rows are upserted and appended; and records per Arrow batch, by Spark's default."""

MIB = 2**20
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.float64()})
OWN = {"Delta": "delta", "Iceberg, positions": "iceberg", "Iceberg, equality": "iceberg"}
THEIRS = "delta-rs's merge"


def run(quick: bool) -> list[Row]:
    """Return the times, bytes and memory of changes, and the ratio of upserts to appends."""
    rows, turns = ROWS[quick], 2 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        options = {name: _create(name, Path(folder) / str(n), rows) for n, name in enumerate([*OWN, THEIRS])}
        seeds = iter(range(1_000))
        contestants = {
            name: functools.partial(lambda name, given: _alone(_change, name, given, next(seeds), rows), name, given)
            for name, given in options.items()
        }
        turns_of = in_turns(contestants, turns)
        appends = in_turns(
            {how: functools.partial(_written, Path(folder), how, quick) for how in ("append", "upsert")}, turns
        )
    what = f"{CHANGED} changes into {rows} rows"
    seconds = {name: [turn["s"] for turn in found] for name, found in turns_of.items()}
    return [
        *(Row(f"{what}, {name}", "s", tuple(took)) for name, took in seconds.items()),
        *(ratio(f"{what}: {name}, over {THEIRS}", seconds, name, THEIRS) for name in OWN),
        *(Row(f"{what}, {name}: written", "MB", tuple(t["MB"] for t in found)) for name, found in turns_of.items()),
        *(Row(f"{what}, {name}: memory", "MiB", tuple(t["MiB"] for t in found)) for name, found in turns_of.items()),
        ratio(
            f"equality upserts of {UPSERTED[quick]} rows: throughput over appends",
            appends,
            "append",
            "upsert",
            "upserts_vs_appends",
        ),
    ]


def _create(name: str, folder: Path, rows: int) -> dict[str, str]:
    """Create a table with ``FILES`` files of shuffled ids. Return the options of its sink."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    parts = [_rows(rng, ids) for ids in np.array_split(rng.permutation(rows), FILES)]
    if OWN.get(name) == "iceberg":
        options = create_iceberg(folder, SCHEMA)
        catalog = load_catalog(
            "default", **{n.removeprefix("catalog."): v for n, v in options.items() if "." in n and n != "table"}
        )
        table = catalog.load_table(options["table"])
        for part in parts:
            table.append(part)
        catalog.close()
        return options | {"upsert_by": "id", "deletes": "position" if "positions" in name else "equality"}
    DeltaTable.create(
        folder / "delta",
        Schema.from_arrow(SCHEMA),
        configuration={"delta.enableDeletionVectors": str(name != THEIRS).lower()},
    )
    for part in parts:
        write_deltalake(folder / "delta", part, mode="append")
    return {"path": f"{folder}/delta", "upsert_by": "id"}


def _rows(rng: np.random.Generator, ids: Any) -> pa.Table:
    names = pa.array([f"name {number}" for number in range(1000)]).take(pa.array(ids % 1000))
    return pa.table({"id": ids, "name": names, "v": rng.random(len(ids))}, schema=SCHEMA)


def _change(name: str, options: Mapping[str, str], seed: int, rows: int) -> dict[str, float]:
    """Apply changes once."""
    folder = Path(options.get("path") or re.sub(r"^sqlite:///", "", options["catalog.uri"])).parent
    changes = _rows(np.random.default_rng(seed), np.random.default_rng(seed).choice(rows, CHANGED, replace=False))
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


def _written(folder: Path, how: str, rows: int) -> float:
    """Return the seconds of a batch from its first record to the end of its commit, into a table of its own."""
    made = tempfile.mkdtemp(dir=folder)
    options = create_iceberg(made, SCHEMA) | ({"upsert_by": "id"} if how == "upsert" else {})
    rng = np.random.default_rng(1)
    table = _rows(rng, rng.permutation(rows))
    sink: Any = twopc.create_sink("iceberg", options)
    started = time.perf_counter()
    batch = _decided(sink, [table], 0)
    sink.commit_batch(0, batch)
    return time.perf_counter() - started


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _peak_mib() -> float:
    """Return the peak memory of this process. ``getrusage`` would return the parent's peak if that was higher."""
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) * 1024 / MIB


def _alone(measured: Any, *arguments: object) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, arguments)
