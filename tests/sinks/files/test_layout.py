"""Every record is in exactly one file, in the folder of its values; files, memory and what is left open are bounded."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.typed_records import unchecked_text
from twopc import open_files
from twopc.errors import RecordRefused, SchemaMismatch
from twopc_files.delimited import Csv
from twopc_files.file_names import FileHandle
from twopc_files.formats import Format
from twopc_files.json_lines import JsonLines
from twopc_files.layout import Files, Layout, split
from twopc_files.lines import Text
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet
from twopc_files.stores.store import PendingFile


class LocalFile(PendingFile):
    """A pending file on the disk, which tells what became of it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.state = "open"
        self._file = path.open("xb")

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        assert self.state == "open"
        return self._file.write(data)

    def made_durable(self) -> FileHandle:
        self._file.close()
        self.state = "closed"
        return FileHandle("", "", "")

    def discard(self) -> None:
        raise AssertionError("it is the sink that discards")


class Staging:
    """A folder of pending files, in the order in which they were created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[LocalFile] = []

    def create(self, folder: str) -> LocalFile:
        file = LocalFile(self.folder / folder / str(len(self.files)))
        self.files.append(file)
        return file

    def folders(self) -> list[str]:
        return [str(file.path.parent.relative_to(self.folder)) for file in self.files]

    def states(self) -> list[str]:
        return [file.state for file in self.files]


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    staging = Staging(tmp_path)
    yield staging
    for file in staging.files:
        file._file.close()


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def numbers(count: int) -> pa.RecordBatch:
    return batch(n=pa.array(range(count), pa.int64()))


def lines(staging: Staging) -> list[list[str]]:
    return [file.path.read_text().splitlines() for file in staging.files]


def test_records_go_into_the_folders_of_their_values_in_their_order_and_without_the_columns(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(("day", "city")), staging.create)
    may = dt.date(2024, 5, 1)
    files.write(batch(n=[1, 2, 3, 4], city=["Bern", "Rom", "Bern", None], day=[may, may, may, None]))
    files.write(batch(n=[5, 6], city=["Rom", "Bern"], day=[may, may]))
    files.finish()
    assert dict(zip(staging.folders(), lines(staging), strict=True)) == {
        "day=2024-05-01/city=Bern": ['{"n":1}', '{"n":3}', '{"n":6}'],
        "day=2024-05-01/city=Rom": ['{"n":2}', '{"n":5}'],
        "day=__HIVE_DEFAULT_PARTITION__/city=__HIVE_DEFAULT_PARTITION__": ['{"n":4}'],
    }
    assert staging.states() == ["closed"] * 3


@given(st.lists(st.tuples(st.sampled_from(["a", "b/", None]), st.sampled_from([0, 1, None]))))
def test_a_batch_is_split_without_loss_and_each_part_keeps_its_order(keys: list[tuple[str | None, int | None]]) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("j", pa.int8())])
    rows = [{"k": k, "n": n, "j": j} for n, (k, j) in enumerate(keys)]
    expected = defaultdict(list)
    for row in rows:
        folder = f"j={row['j']}/k={row['k']}".replace("None", open_files.DEFAULT_PARTITION).replace("/b/", "/b%2F")
        expected[folder.replace("b/", "b%2F")].append(row["n"])
    whole = pa.RecordBatch.from_pylist(rows, schema)
    parts = list(split(whole, ("j", "k")))
    assert {folder: part["n"].to_pylist() for folder, part in parts} == expected
    assert len(parts) == len(expected)


@given(st.sets(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))))
def test_each_value_has_a_folder_of_its_own(values: set[str | None]) -> None:
    values -= {"", open_files.DEFAULT_PARTITION}  # refused
    assert len({open_files.partition_folder("c", value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("cty",), r"no column 'cty' to partition by. Did you mean 'City'\?.*The columns are: City, n, at,"),
        (("zzz",), r"no column 'zzz' to partition by. Nothing was written. The columns are"),
        (("City", "n", "at"), "type timestamp"),
        (("n", "City", "rest"), "no column 'rest'"),
        (("\0",), "no folder can be named after"),
        ((".hidden",), "readers skip it"),
        (("_hidden",), "readers skip it"),
    ],
)
def test_a_partition_column_that_cant_be_is_refused(columns: tuple[str, ...], message: str) -> None:
    others = [(name, pa.int8()) for name in ("\0", ".hidden", "_hidden")]
    schema = pa.schema([("City", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us")), *others])
    with pytest.raises(SchemaMismatch, match=message):
        Layout(columns).data_schema(schema)


def test_all_columns_as_partition_columns_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="all columns are partition columns"):
        Layout(("b", "a")).data_schema(pa.schema([("a", pa.string()), ("b", pa.int64())]))


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.float32(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary(), pa.date64()),
        *(pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.time64("us"), pa.null()),
    ],
    ids=str,
)
def test_types_without_one_form_in_a_folders_name_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"partition column 'p' has type.*Nothing was written"):
        Layout(("p",)).data_schema(pa.schema([("p", type_), ("n", pa.int64())]))


def test_the_schema_of_the_files_lacks_the_partition_columns_and_keeps_the_rest() -> None:
    schema = pa.schema([pa.field("a", pa.int8()), pa.field("p", pa.string()), pa.field("b", pa.int8(), nullable=False)])
    assert Layout(("p",)).data_schema(schema).equals(pa.schema([schema[0], schema[2]]))


TOO_FAR = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())  # 1 January 10000


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["a", "\0"]), "it has a NUL, and a folder can't be named after it"),
        (pa.array(["a", ""]), "readers take an empty text"),
        (pa.array([None, "__HIVE_DEFAULT_PARTITION__"]), "readers take an empty text"),
        (pa.array(["nulls", "Null"]), "readers take an empty text, 'null'"),
        (unchecked_text(b"a", b"\xff"), "a text is not valid UTF-8"),
        (TOO_FAR, "the year is not in 1 to 9999"),
        (pa.array(["a", "x" * 254]), "would have more than 255 bytes"),  # the name is p=xxx…
        (pa.array(["a", "ü" * 127]), "would have more than 255 bytes"),
        (pa.array(["a", "/" * 85]), "would have more than 255 bytes"),  # three for each %2F
    ],
    ids=["NUL", "empty", "for null", "null", "bytes", "year", "long", "long in UTF-8", "long when escaped"],
)
def test_a_record_that_no_folder_can_be_named_after_is_refused_and_none_of_its_batch_is_written(
    column: pa.Array, reason: str, staging: Staging
) -> None:
    files = Files(JsonLines(), Layout(("q", "p")), staging.create, longest_name=255)
    records = pa.record_batch({"p": column, "n": [1, 2], "q": [7, 7]}).take(pa.array([0, 0, 1, 0, 1]))
    with pytest.raises(RecordRefused, match=reason) as refused:
        files.write(records)
    assert (refused.value.record, refused.value.column) == (2, "p")
    assert staging.files == []


def test_the_longest_name_that_a_disk_takes_is_written(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(("p",)), staging.create, longest_name=255)
    files.write(batch(p=["x" * 253], n=[1]))
    files.finish()
    assert staging.folders() == ["p=" + "x" * 253]


def test_a_bad_record_is_refused_although_its_folder_would_have_to_wait_for_a_file(staging: Staging) -> None:
    files = Files(Text(), Layout(("p",), max_open_files=1), staging.create)
    files.write(batch(p=["a"], n=["fine"]))
    with pytest.raises(RecordRefused, match="it has a line break") as refused:
        files.write(batch(p=["a", "b", "b"], n=["fine", "fine", "no\nline"]))
    assert (refused.value.record, refused.value.column) == (2, "n")
    files.finish()
    assert lines(staging) == [["fine"]]


@pytest.mark.parametrize("value", ["../../etc", "/etc", "..", ".", "a/../../b", "C:\\x"])
def test_no_value_leads_out_of_its_folder(value: str) -> None:
    [name] = Path(open_files.partition_folder("p", value)).parts
    assert name.startswith("p=")
    [name] = Path(open_files.partition_folder(value, "x")).parts
    assert name.endswith("=x")


def test_values_are_written_as_spark_casts_them_to_strings() -> None:
    values = [True, 7, Decimal("0.0000000001"), dt.date(1, 2, 3), "ü"]
    assert [open_files.partition_folder("p", value) for value in values] == [
        *("p=true", "p=7", "p=0.0000000001", "p=0001-02-03", "p=ü"),
    ]


def test_a_file_never_has_more_records_than_asked_for(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(max_records_per_file=4), staging.create)
    for count in (3, 6, 0, 1):
        files.write(numbers(count))
    files.finish()
    assert [len(part) for part in lines(staging)] == [4, 4, 2]
    assert [line for part in lines(staging) for line in part] == [
        f'{{"n":{n}}}' for n in (*range(3), *range(6), *range(1))
    ]


def test_no_empty_file_is_made_where_the_records_fill_the_last_one(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(max_records_per_file=3), staging.create)
    files.write(numbers(6))
    files.finish()
    assert [len(part) for part in lines(staging)] == [3, 3]


@pytest.mark.parametrize("kind", [JsonLines(), Csv(), Parquet(compression="none", row_group_bytes=10_000)], ids=str)
def test_a_file_is_finished_with_the_batch_that_fills_it(kind: Format, staging: Staging) -> None:
    files = Files(kind, Layout(max_bytes_per_file=100_000), staging.create)
    for _ in range(100):
        files.write(batch(n=list(range(1000)), s=["x" * 10] * 1000))
    files.finish()
    sizes = [file.path.stat().st_size for file in staging.files]
    assert len(sizes) > 1
    assert max(sizes) < 150_000


def test_records_that_are_held_count_for_the_size_of_a_file(staging: Staging) -> None:
    files = Files(Parquet(), Layout(max_bytes_per_file=8000), staging.create)
    for _ in range(4):
        files.write(numbers(600))  # 4800 bytes; no row group is written yet
    files.finish()
    assert [pq.read_metadata(file.path).num_rows for file in staging.files] == [1200, 1200]


def test_the_least_recently_written_file_makes_room_and_later_records_get_a_new_one(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "HELD_BYTES", 1)  # nothing can wait
    files = Files(JsonLines(), Layout(("p",), max_open_files=2), staging.create)
    for n, p in enumerate("abaca"):
        files.write(batch(p=[p], n=[n]))
        assert staging.states().count("open") <= 2
    assert staging.folders() == ["p=a", "p=b", "p=c"]
    assert staging.states() == ["open", "closed", "open"]
    files.write(batch(p=["b"], n=[5]))
    files.finish()
    assert staging.folders() == ["p=a", "p=b", "p=c", "p=b"]
    assert lines(staging) == [['{"n":0}', '{"n":2}', '{"n":4}'], ['{"n":1}'], ['{"n":3}'], ['{"n":5}']]


def test_a_folder_that_gets_room_may_fill_its_file_at_once(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "HELD_BYTES", 1)
    files = Files(JsonLines(), Layout(("p",), max_records_per_file=2, max_open_files=1), staging.create)
    files.write(batch(p=["a", "b", "b", "c", "c", "d"], n=[1, 2, 3, 4, 5, 6]))
    files.finish()
    assert [len(part) for part in lines(staging)] == [1, 2, 2, 1]


def test_records_that_wait_come_before_later_ones_of_their_folder(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(("p",), max_records_per_file=3, max_open_files=1), staging.create)
    files.write(batch(p=["a", "a", "b"], n=[1, 2, 3]))
    assert staging.folders() == ["p=a"]
    files.write(batch(p=["a", "b", "b"], n=[4, 5, 6]))  # fills the file of a, which makes room
    files.finish()
    assert lines(staging) == [['{"n":1}', '{"n":2}', '{"n":4}'], ['{"n":3}', '{"n":5}', '{"n":6}']]


@pytest.mark.parametrize("kind", [Parquet(), Orc()], ids=str)
def test_many_open_files_hold_no_more_together_than_a_few(
    kind: Format, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "HELD_BYTES", 100_000)
    files = Files(kind, Layout(("p",)), staging.create)
    for _ in range(50):
        files.write(batch(p=[n % 8 for n in range(1000)], n=list(range(1000))))
        assert sum(file.held_bytes for file in files._open._open.values()) <= 100_000
    files.finish()
    read = {Parquet: pq.read_table, Orc: paorc.read_table}[type(kind)]
    assert sum(read(str(file.path)).num_rows for file in staging.files) == 50_000


@pytest.mark.parametrize(
    ("buffer_bytes", "at_once"), [(0, 6), (open_files.HELD_BYTES // 3, 3), (open_files.HELD_BYTES * 2, 1)]
)
def test_no_more_files_are_open_than_their_stores_buffers_have_room(
    buffer_bytes: int, at_once: int, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFile, "buffer_bytes", buffer_bytes)
    files = Files(JsonLines(), Layout(("p",)), staging.create)
    files.write(batch(p=list("abcdef"), n=[1] * 6))
    assert staging.states().count("open") == at_once
    files.finish()
    assert staging.states() == ["closed"] * 6


@pytest.mark.variants
@pytest.mark.parametrize("kind", [Parquet(), JsonLines("gzip"), Csv(), Orc(), Text("zstd")], ids=str)
def test_writers_that_are_let_go_of_write_nothing_more(kind: Format, staging: Staging) -> None:
    files = Files(kind, Layout(("p",), max_records_per_file=2), staging.create)
    files.write(batch(p=["a", "a", "a", "b"], s=["v", "w", "x", "y"]))
    assert staging.states() == ["closed", "open", "open"]
    for file in staging.files:
        file.write = None  # type: ignore[assignment, method-assign]  # whoever writes fails
    for _ in range(2):
        files.discard()
    assert staging.states() == ["closed", "open", "open"]


def test_writers_are_let_go_of_where_one_could_not_finish(staging: Staging) -> None:
    files = Files(Parquet(), Layout(("p",)), staging.create)
    files.write(batch(p=["a", "b"], s=["v", "w"]))
    staging.files[1]._file.close()  # whoever writes to it gets an error
    with pytest.raises(ValueError, match="closed file"):
        files.finish()
    files.discard()
    assert staging.states() == ["closed", "open"]


def test_a_batch_of_another_schema_is_refused(staging: Staging) -> None:
    files = Files(JsonLines(), Layout(("p",)), staging.create)
    files.write(batch(p=["a"], n=[1]))
    with pytest.raises(SchemaMismatch, match="column 'p' of type int64 after string"):
        files.write(batch(p=[1], n=[1]))
    files.finish()
