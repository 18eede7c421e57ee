"""Changes by a key: random ones into a large table, beside delta-rs's merge and Spark's; and equality upserts beside
appends.

A change is measured from the decision to the end of the commit, in a process of its own, with the bytes that it writes
and the peak of the process's memory. Each turn changes other rows, and the changes of earlier ones stay.
"""

from __future__ import annotations

import functools
import itertools
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

import twopc
from tests.benchmarks import merging
from tests.benchmarks.lake import on_spark
from tests.benchmarks.lake_tables import create_delta, create_iceberg, iceberg_rows, iceberg_table
from tests.benchmarks.measuring import Row, alone, in_turns, peak_mib, ratio
from tests.benchmarks.pipeline import told_if_missing
from twopc import Participant, Round
from twopc.keyed import KeyedSink

CHANGED = 10_000
TURNS = (5, 2)
"""In a full and in a quick run, as the pairs below."""
ROWS, LARGE = (10_000_000, 1_000_000), (100_000_000, 4_000_000)
"""How many rows a table has."""
ROWS_OF_FILE = (1_000_000, 100_000)

UPSERTED, AT_ONCE = (4_000_000, 400_000), 10_000
"""How many rows are upserted and appended; and records per Arrow batch, by Spark's default."""

SPARK_AT_MOST_S = 3600
"""How long Spark's own process may live."""

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.float64()})
DELTA, POSITIONS, EQUALITY = "Delta", "Iceberg, positions", "Iceberg, equality"
OWN = {DELTA: "delta", POSITIONS: "iceberg", EQUALITY: "iceberg"}
KEYS = {DELTA: "changes_delta", POSITIONS: "changes_positions"}
"""The beginnings of keys in the report."""
THEIRS = "delta-rs's merge"
UNITS = {"s": "", "MB": ": written", "MiB": ": memory"}

Turns = Mapping[str, Sequence[Mapping[str, float]]]


def run(quick: bool) -> list[Row]:
    """Return times, bytes and memory of changes beside delta-rs, and the ratio of equality upserts to appends."""
    with tempfile.TemporaryDirectory() as folder:
        contestants = {
            name: _contestant(name, Path(folder, str(number)), ROWS, quick)
            for number, name in enumerate((*OWN, THEIRS))
        }
        found = in_turns(contestants, TURNS[quick])
        upserted = UPSERTED[quick]
        written = {how: functools.partial(alone, _written, folder, how, upserted) for how in ("append", "upsert")}
        took = in_turns(written, TURNS[quick])
    what = f"equality upserts of {upserted} rows: throughput over appends"
    return [
        *_figures(found, _what(ROWS[quick])),
        *(_ratio(found, name, THEIRS, f"{KEYS[name]}_vs_merge") for name in KEYS),
        *(Row(f"{how} of {upserted} rows to Iceberg", "s", tuple(seconds)) for how, seconds in took.items()),
        ratio(what, took, "append", "upsert", "upserts_vs_appends"),
    ]


def run_beside_spark(quick: bool) -> list[Row]:
    """Return the times of changes over those of Spark's ``MERGE``, with a table of its own."""
    figures = list[Row]()
    for name, key in KEYS.items():
        theirs = f"Spark's MERGE, {name}"
        with told_if_missing(), tempfile.TemporaryDirectory() as made, _spark(name, Path(made), quick) as merge:
            contestants = {name: _contestant(name, Path(made, "ours"), ROWS, quick), theirs: merge}
            found = in_turns(contestants, TURNS[quick])
            figures += [*_figures(found, _what(ROWS[quick]), {"s": ""}), _ratio(found, name, theirs, f"{key}_vs_spark")]
    return figures


def run_large(quick: bool) -> list[Row]:
    """Return times, bytes and memory of changes of a table ten times as large, and the times over the smaller one's."""
    figures = list[Row]()
    for name, key in KEYS.items():
        with tempfile.TemporaryDirectory() as folder:
            sizes = {_what(rows[quick]): rows for rows in (ROWS, LARGE)}
            contestants = {
                what: _contestant(name, Path(folder, str(rows[quick])), rows, quick) for what, rows in sizes.items()
            }
            found = in_turns(contestants, TURNS[quick])
        small, large = sizes
        figures += [*_figures(found, name), _ratio(found, large, small, f"{key}_growth", f"{name}: ")]
    return figures


def _what(rows: int) -> str:
    return f"{CHANGED} changes into {rows} rows"


def _figures(found: Turns, what: str, units: Mapping[str, str] = UNITS) -> Iterator[Row]:
    for unit, of in units.items():
        for name, turns in found.items():
            yield Row(f"{what}, {name}{of}", unit, tuple(turn[unit] for turn in turns))


def _ratio(found: Turns, one: str, other: str, key: str, of: str = "") -> Row:
    seconds = {name: [turn["s"] for turn in turns] for name, turns in found.items()}
    return ratio(f"{of}{one}, over {other}", seconds, one, other, key)


@contextmanager
def _spark(name: str, folder: Path, quick: bool) -> Iterator[Callable[[], dict[str, float]]]:
    """Start Spark with a table of its own. Yields what merges changes into it, once it is warm."""
    command, seeds = on_spark("merging", OWN[name], folder), itertools.count()
    (folder / merging.ROWS).mkdir()
    for number, part in enumerate(_parts(ROWS, quick)):
        pq.write_table(part, folder / merging.ROWS / f"{number:04d}.parquet")
    command = ["timeout", str(SPARK_AT_MOST_S), *command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as spark:
        assert spark.stdin is not None
        assert spark.stdout is not None
        given, answers = spark.stdin, spark.stdout

        def merge() -> dict[str, float]:
            seed = next(seeds)
            changes = folder / f"changes-{seed}.parquet"
            pq.write_table(_changes(seed, ROWS[quick]), changes)
            print(changes, file=given, flush=True)
            return {"s": float(answers.readline())}

        try:
            merge()
            _tell_made(f"Spark's MERGE, {name}", ROWS[quick])
            yield merge
        except BaseException:
            spark.terminate()
            raise
    if spark.returncode:
        raise SystemExit(f"{' '.join(command)} failed: see above")


def _contestant(name: str, folder: Path, rows: Sequence[int], quick: bool) -> Callable[[], dict[str, float]]:
    """Create a table. Returns what applies changes to it once."""
    options, seeds = alone(_create, name, folder, rows, quick), itertools.count()
    _tell_made(name, rows[quick])
    return lambda: alone(_change, name, folder, options, next(seeds), rows[quick])


def _tell_made(name: str, rows: int) -> None:
    print(f"  a table of {rows} rows for {name}", flush=True)  # noqa: T201  # the progress


def _create(name: str, folder: Path, rows: Sequence[int], quick: bool) -> dict[str, str]:
    """Create a table. Return the options of its sink."""
    if OWN.get(name) == "iceberg":
        options = create_iceberg(folder, SCHEMA)
        with iceberg_table(folder) as table:
            for part in _parts(rows, quick):
                table.append(part)
        return options | {"upsert_by": "id", "deletes": "position" if name == POSITIONS else "equality"}
    options = create_delta(folder, SCHEMA, {"delta.enableDeletionVectors": str(name != THEIRS).lower()})
    for part in _parts(rows, quick):
        write_deltalake(options["path"], part, mode="append")
    return options | {"upsert_by": "id"}


def _parts(rows: Sequence[int], quick: bool) -> Iterator[pa.Table]:
    """Yield the content of each file of a table. Their ids are shuffled."""
    rng = np.random.default_rng(1)
    for ids in np.array_split(rng.permutation(rows[quick]), rows[quick] // ROWS_OF_FILE[quick]):
        yield _rows(rng, ids)


def _changes(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return _rows(rng, rng.choice(rows, CHANGED, replace=False))


def _rows(rng: np.random.Generator, ids: Any) -> pa.Table:
    names = pa.array([f"name {number}" for number in range(1000)]).take(pa.array(ids % 1000))
    return pa.table({"id": ids, "name": names, "v": rng.random(len(ids))}, schema=SCHEMA)


def _change(name: str, folder: Path, options: Mapping[str, str], seed: int, rows: int) -> dict[str, float]:
    """Apply changes once."""
    changes, before = _changes(seed, rows), _bytes(folder)
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
    measured = {"s": took, "MB": (_bytes(folder) - before) / 1e6, "MiB": peak_mib()}
    if name != EQUALITY:  # which pyiceberg does not read
        found = iceberg_rows(folder) if name == POSITIONS else _delta_rows(options["path"])
        assert found == rows, f"{name} has {found} rows: each change replaces one"
    return measured


def _delta_rows(path: str) -> int:
    """Return the number of rows without those that deletion vectors delete."""
    query = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT count(*) AS n FROM t")
    return int(pa.table(query.read_all())["n"][0].as_py())


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
    with iceberg_table(made) as written:
        summary: Any = written.metadata.snapshots[-1].summary
    assert summary["added-records"] == str(rows)
    assert summary["added-equality-deletes"] == (str(rows) if how == "upsert" else None)
    return took


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
