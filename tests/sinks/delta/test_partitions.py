"""Records of one partition share a file, and no others. Every reader finds each value as it was given."""

import string
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_readers import READERS
from twopc.errors import RecordRefused
from twopc.open_files import partition_folder
from twopc_delta.partitions import require_readable, split
from twopc_delta.storage import Storage

# All that a folder's name could lose: what it ends with, what is escaped, what lies behind its end, and case.
TEXTS = ["Acme Inc.", "Acme Inc", "acme inc", ".", "..", "_", " ", "a/b", "a%2Fb", "50 % = x", "null", "true", "1"]
TEXTS += ["é" * 60 + "a", "é" * 60 + "b", "\u4e2d" * 23 + "\u4e00", "\u4e2d" * 23 + "\u4e8c", "x" * 240, "x" * 241]
TEXTS += [
    *("\0", "a\0b", "a\nb", "\\", "?*[{^'\"#:]}", "e\u0301", "\u00e9", "🐎"),
    *(" trailing ", "__HIVE_DEFAULT_PARTITION_"),
]

VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): TEXTS,
    pa.int64(): [0, -1, 2**63 - 1, -(2**63)],
    pa.int8(): [0, 127, -128],
    pa.bool_(): [True, False],
    pa.date32(): [date(1, 1, 1), date(999, 12, 31), date(1969, 12, 31), date(9999, 12, 31)],
    pa.decimal128(38, 10): [Decimal("0E-10"), Decimal(-7), Decimal("1.05"), Decimal("9" * 28 + "." + "9" * 10)],
}


@pytest.mark.parametrize(
    "type", [pa.string(), *(pytest.param(each, marks=pytest.mark.long) for each in [*VALUES][1:])], ids=str
)
def test_each_value_of_a_partition_has_a_file_of_its_own_and_every_reader_finds_it(
    tmp_path: Path, type: pa.DataType
) -> None:
    place = Place(str(tmp_path / "parted"))
    place.create(pa.schema({"id": pa.int64(), "key.ü": type}), ["key.ü"])
    expected = dict(enumerate([*VALUES[type], None]))
    records = pa.record_batch({"id": pa.array(expected, pa.int64()), "key.ü": pa.array(expected.values(), type)})
    place.sink().commit_batch(0, [place.pre_commit(records)])
    assert len(place.added()) == len(expected)
    for read in READERS:
        found = read(place)
        assert dict(zip(found["id"].to_pylist(), found["key.ü"].to_pylist(), strict=True)) == expected, read
    for number, value in expected.items():
        is_it = pl.col("key.ü").eq_missing(pl.lit(value, pl.Series(records["key.ü"]).dtype))
        assert pl.scan_delta(place.path).filter(is_it).collect()["id"].to_list() == [number]


def test_delta_rs_removes_a_file_whatever_characters_its_path_has(tmp_path: Path) -> None:
    """It compares paths as they are spelled, and spells them anew where it removes a file."""
    place = Place(str(tmp_path / "parted"))
    place.create(pa.schema({"id": pa.int64(), "k": pa.string()}), ["k"])
    odd = f"{string.punctuation} ü日"
    place.sink().commit_batch(0, [place.pre_commit({"id": [0, 1], "k": [odd, "a"]})])
    assert all(sorted(read(place)["k"].to_pylist()) == [odd, "a"] for read in READERS)
    place.table().delete("id = 0")
    place.table().create_checkpoint()
    assert all(read(place)["k"].to_pylist() == ["a"] for read in READERS)


few = st.sampled_from([None, "", "a", "b", "\0", "a\0", "\0b", "n", "v", "vn", "."])


@pytest.mark.long
@given(st.lists(st.tuples(few, few, st.sampled_from([None, 1, 11])), max_size=30))
def test_records_share_a_partition_only_if_all_of_its_values_are_equal(keys: list[tuple[Any, ...]]) -> None:
    batch = pa.record_batch(
        {
            "id": pa.array(range(len(keys)), pa.int64()),
            "a": pa.array([key[0] for key in keys], pa.string()),
            "b": pa.array([key[1] for key in keys], pa.string()),
            "c": pa.array([key[2] for key in keys], pa.int32()),
        }
    )
    expected: dict[tuple[Any, ...], list[int]] = {}
    for number, (a, b, c) in enumerate(keys):
        expected.setdefault((a, b, None if c is None else str(c)), []).append(number)
    found = [(values, part["id"].to_pylist()) for values, part in split(batch, ("a", "b", "c"))]
    assert len(found) == len(expected)
    assert dict(found) == expected


def test_a_store_takes_longer_names_of_folders_than_a_disk() -> None:
    on_disk, on_s3 = (Storage.at(url, {}).longest_folder_bytes for url in ("/data/t", "s3://bucket/t"))
    value = pa.array(["x" * 500])
    require_readable(value, "k", on_s3)
    for text, longest in ((value, on_disk), (pa.array(["x" * 1000]), on_s3)):
        with pytest.raises(RecordRefused, match="which the store does not take"):
            require_readable(text, "k", longest)


@pytest.mark.long
@given(st.text(), st.text())
def test_a_folder_has_the_whole_value_in_its_name(one: str, other: str) -> None:
    assert (partition_folder("c", one) == partition_folder("c", other)) is (one == other)


def day(number: int) -> pa.Array:
    return pa.array([number], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("fine", "refused"),
    [
        (pa.array(["null"]), pa.array([""])),
        (pa.array(["null"]), pa.array(["__HIVE_DEFAULT_PARTITION__"])),
        (pa.array(["x" * 253]), pa.array(["x" * 254])),  # with "k=", 255 bytes are what a disk's names have
        (pa.array(["é" * 126]), pa.array(["é" * 127])),
        (pa.array(["%" * 84]), pa.array(["%" * 85])),
        (pa.array([Decimal("-7.00")]), pa.array([Decimal("-0.01")], pa.decimal128(10, 2))),
        (day(-719_162), day(-719_163)),  # of the years 1 and 9999
        (day(2_932_896), day(2_932_897)),
    ],
)
def test_a_value_that_no_disk_or_not_every_reader_takes_is_refused(
    tmp_path: Path, fine: pa.Array, refused: pa.Array
) -> None:
    place = Place(str(tmp_path / "parted"))
    place.create(pa.schema({"id": pa.int64(), "k": refused.type}), ["k"])
    good = pa.record_batch({"id": [0], "k": fine.cast(refused.type)})
    bad = pa.record_batch({"id": [0, 1, 2], "k": pa.concat_arrays([good["k"], pa.nulls(1, refused.type), refused])})
    with pytest.raises(RecordRefused) as error:
        place.pre_commit(bad)
    assert (error.value.column, error.value.record) == ("k", 2)
    place.sink().commit_batch(0, [place.pre_commit(good, partition=1)])
    for read in READERS:
        assert read(place)["k"].to_pylist() == fine.to_pylist()
