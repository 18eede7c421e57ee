"""The storm's lake tables, and two processes beside the query: one reads the tables all the time, one writes to them.

``python -m tests.campaigns.storm.lake read|write``, with the settings as JSON. Both end by a kill.
"""

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from tests.campaigns.storm.query import Settings
from tests.campaigns.tables.delta import DeltaLakeTable
from tests.campaigns.tables.foreign import ForeignWriter, Row
from tests.campaigns.tables.iceberg import IcebergTable
from tests.campaigns.tables.table import LakeTable, reader
from tests.support.commit_log import newest_decided
from tests.support.contents import difference
from tests.support.kills import kill_all_of, start_logged
from twopc.log.store import open_store

SCHEMA = pa.schema({"value": pa.string(), "batch": pa.int64()})
KEPT = timedelta(seconds=120)
"""How long the maintenance of the Iceberg table keeps versions: longer than any driver is down or asleep."""

PAUSE_S = 0.2
APPENDS_EVERY_S = 4.0
MAINTAINS = 1 / 5
"""The share of appends after which the writer maintains the table."""


def tables(settings: Settings) -> dict[str, LakeTable]:
    """Return the tables, by the names of their sinks."""
    folder = Path(settings.folder)
    location = f"file://{folder}/iceberg/numbers"
    return {
        "iceberg": IcebergTable("storm.numbers", settings.catalog, location, folder, kept=KEPT),
        "delta": DeltaLakeTable(str(folder / "delta" / "numbers")),
    }


def create_tables(settings: Settings) -> None:
    for table in tables(settings).values():
        table.create(SCHEMA)


def foreign_writer(settings: Settings) -> ForeignWriter:
    return ForeignWriter(Path(settings.folder), tables(settings), SCHEMA, _record)


def _record(number: int) -> Row:
    return (str(number), -1)


@contextlib.contextmanager
def beside(settings: Settings, what: str) -> Iterator[None]:
    """Have a process ``read`` or ``write`` the tables."""
    command = ("-m", "tests.campaigns.storm.lake", what, json.dumps(asdict(settings)))
    process = start_logged(Path(settings.folder) / f"{what}.log", *command)
    try:
        yield
    finally:
        kill_all_of(process)


# The processes beside the query. --------------------------------------------------------------------------------------


def read(settings: Settings) -> None:
    """Look at each table again and again, and write down how many records of each batch are there."""
    log = open_store(f"{settings.folder}/log")
    with _looks(settings).open("a", encoding="utf-8") as looks:
        while True:
            for name, table in tables(settings).items():
                try:
                    sql = f"SELECT batch, count(*) FROM {table.scan()} GROUP BY batch"  # noqa: S608  # ours
                    counts = dict(reader().execute(sql).fetchall())
                except Exception as error:  # noqa: BLE001  # the catalog was killed, or a file expired: look again
                    print(f"{name}: {error}", flush=True)
                    continue
                decided = newest_decided(log)  # read later than the table
                looks.write(json.dumps({"table": name, "decided": decided, "counts": counts}) + "\n")
                looks.flush()
            time.sleep(PAUSE_S)


def write(settings: Settings) -> None:
    """Append to each table again and again, and sometimes maintain it."""
    writer = foreign_writer(settings)
    while True:
        for name in writer.tables:
            try:
                writer.append(name)
                if random.random() < MAINTAINS:  # noqa: S311  # no secret
                    writer.maintain(name)
            except Exception as error:  # noqa: BLE001  # another writer was faster, a disk is full, the catalog is down
                print(f"{name}: {error}", flush=True)
        time.sleep(random.uniform(0, APPENDS_EVERY_S))  # noqa: S311


def _looks(settings: Settings) -> Path:
    return Path(settings.folder) / "looks.jsonl"


# The comparison. ------------------------------------------------------------------------------------------------------


def compare_tables(settings: Settings, sent: int) -> dict[str, dict[str, int]]:
    """Compare the tables with the numbers below ``sent``, and with what was seen of them meanwhile."""
    found: dict[str, dict[str, int]] = {}
    looks = [json.loads(line) for line in _looks(settings).read_text().splitlines() if line.endswith("}")]
    writer = foreign_writer(settings)
    for name, table in tables(settings).items():
        by_library = _rows(table.read())
        by_duckdb = _rows(reader().execute(f"SELECT value, batch FROM {table.scan()}").to_arrow_table())  # noqa: S608
        ours, others = ([row for row in by_library if (row[1] >= 0) == is_ours] for is_ours in (True, False))
        there = difference(range(sent), (int(value) for value, _ in ours))
        unlike = difference(by_library, by_duckdb)
        sizes = _sizes(ours)
        of_table = [look for look in looks if look["table"] == name]
        found[name] = {
            "lost": there.lost,
            "duplicates": there.duplicates,
            "torn": len({batch for look in of_table for batch in _torn(look["counts"], sizes)}),
            "early": len({batch for look in of_table for batch in look["counts"] if int(batch) > look["decided"]}),
            "left": len(table.files()),
            "foreign_changed": len(writer.changed(name, others)),
            "foreign_appends": writer.appended(name),
            "looks": len(of_table),
            "seen_otherwise_by_duckdb": unlike.lost + unlike.duplicates,
        }
    return found


def _rows(found: pa.Table) -> list[Row]:
    return list(zip(found["value"].to_pylist(), found["batch"].to_pylist(), strict=True))


def _sizes(rows: list[Row]) -> Mapping[str, int]:
    """Return how many records each batch has at the end."""
    sizes: dict[str, int] = {}
    for _, batch in rows:
        sizes[str(batch)] = sizes.get(str(batch), 0) + 1
    return sizes


def _torn(counts: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the batches of which a look has found a part, or more than all."""
    for batch, count in counts.items():
        if int(batch) >= 0 and count != sizes.get(batch):
            yield batch


def main() -> None:
    os.nice(10)
    what, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    {"read": read, "write": write}[what](settings)


if __name__ == "__main__":
    main()
