"""Entries of Spark's offset log as JSON, and what offsets of file sources stand for."""

import hashlib
import json
from pathlib import Path

import pytest

from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.offsets import by_source, parse, records_between, text_of, watermark_ms
from twopc.checkpoint.source_files import KEPT_BYTES, content
from twopc.transaction import JsonValue

METADATA = '{"batchWatermarkMs":7,"batchTimestampMs":1795364020298,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def entry(*offsets: str, version: str = "v1", metadata: str = METADATA) -> str:
    return "\n".join([version, metadata, *offsets])


@pytest.mark.parametrize(
    "text",
    [
        entry('{"orders":{"0":100,"1":7}}', "-", '{"logOffset":3}'),
        entry('{"logOffset":3}', "orders:-", version="v2").replace('{"logOffset', 'files:{"logOffset'),
        entry(
            "5",
            '{ "spaced" : 1 }',
            '{"twice":1,"twice":2}',
            '"quoted"',
            "null",
            "true",
            "1.50",
            "né",
            '{"a":"\\u00e9"}',
        ),
        entry("[NaN]"),
        entry("{" * 5000),
        entry("no colon", version="v2"),
        entry("-", metadata=""),
        entry("-", version="v9"),
    ],
)
def test_an_entry_is_written_back_byte_by_byte(text: str) -> None:
    reads = json.loads(json.dumps(parse(text)))  # as the log keeps it
    assert text_of(reads) == text
    assert parse(text) == reads


def test_offsets_are_told_apart_by_source_and_partition() -> None:
    reads = parse(entry('{"orders":{"0":100,"1":7}}', "-"))
    assert reads["sources"] == [{"orders": {"0": 100, "1": 7}}, None]
    assert watermark_ms(reads) == 7
    assert by_source(parse(entry('orders:{"0":1}', version="v2"))) == {"orders": {"0": 1}}
    assert by_source({**parse(entry("1", "2", "1")), "folders": ["0", "1", "0"]}) == {"0": 1, "1": 2}


@pytest.mark.parametrize("text", ["", "v1", f"v1\n{METADATA}\n", f"v1\n{METADATA}\n\n-", "\0\0\0\0", "{}\n{}\n{}"])
def test_an_entry_that_a_power_cut_has_cut_off_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not an entry"):
        parse(text)


@pytest.mark.parametrize(
    ("earlier", "later", "records"),
    [
        ({"a": {"0": 100, "1": 5}, "b": {"0": 1}}, {"a": {"0": 300, "1": 5}, "b": {"0": 2}}, 201),
        ({"a": {"0": 100}}, {"a": {"0": 100, "1": 5}}, None),  # from where its first is not told
        ({"a": {"0": 20_000, "1": 100}}, {"a": {"0": 500, "1": 20_100}}, None),  # it was created again
        ({"a": {}}, {"a": {}}, 0),
        ({"logOffset": 1}, {"logOffset": 2}, None),
        ({"a": {"x": 1}}, {"a": {"x": 2}}, None),
        (None, {"a": {"0": 1}}, None),
        ({}, {}, None),
    ],
)
def test_records_are_counted_between_offsets_of_kafka_alone(
    earlier: JsonValue, later: JsonValue, records: int | None
) -> None:
    assert records_between(earlier, later) == records


# Files that offsets are numbers of. ---------------------------------------------------------------------------------


def line(number: int, name: str = "") -> str:
    value = {"path": f"file:///in/{name or number}", "timestamp": 1, "batchId": number}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # as Spark does


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.folder = CheckpointFolder(str(folder))

    def write(self, path: str, text: str) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(text)

    def plan(self, batch_id: int, *offsets: str) -> None:
        self.write(f"offsets/{batch_id}", entry(*offsets))

    def files(self, batch_id: int) -> JsonValue:
        found: JsonValue = self.folder.reads(batch_id).get("files")
        return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def test_a_file_source_counts_by_itself(checkpoint: Checkpoint) -> None:
    checkpoint.plan(4, '{"orders":{"0":1}}', '{"logOffset":6}')
    checkpoint.plan(5, '{"orders":{"0":2}}', '{"logOffset":8}')
    for number in range(9):
        checkpoint.write(f"sources/1/{number}", f"v1\n{line(number)}")
    assert checkpoint.files(5) == {"1": {"7": ["v1", json.loads(line(7))], "8": ["v1", json.loads(line(8))]}}


def test_a_batch_without_new_files_has_none(checkpoint: Checkpoint) -> None:
    checkpoint.plan(4, '{"logOffset":6}')
    checkpoint.plan(5, '{"logOffset":6}')
    checkpoint.write("sources/0/6", f"v1\n{line(6)}")
    assert checkpoint.files(5) is None


def test_of_a_compact_file_the_lines_of_its_own_number_are_kept(checkpoint: Checkpoint) -> None:
    checkpoint.plan(8, '{"logOffset":8}')
    checkpoint.plan(9, '{"logOffset":9}')
    lines = [line(number, f"{number}-{n:05d}") for number in range(9) for n in range(500)]  # more than is read first
    checkpoint.write("sources/0/9.compact", "\n".join(["v1", *lines, line(9, "é"), line(9)]))
    assert checkpoint.files(9) == {"0": {"9.compact": [json.loads(line(9, "é")), json.loads(line(9))]}}


def test_of_long_files_a_digest_is_kept(checkpoint: Checkpoint) -> None:
    lines = [line(9, f"{n:08d}") for n in range(KEPT_BYTES // 50)]
    text = "\n".join(["v1", *lines])
    checkpoint.write("sources/0/8", text)
    assert content(checkpoint.folder, "sources/0/8") == {
        "bytes": len(text),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    checkpoint.write("sources/0/9.compact", "\n".join(["v1", line(8), *lines]))
    own = "\n".join(lines)
    assert content(checkpoint.folder, "sources/0/9.compact") == {
        "bytes": len(own),
        "sha256": hashlib.sha256(own.encode()).hexdigest(),
    }


def test_the_first_batch_has_the_offsets_at_which_other_sources_began(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, '{"orders":{"0":1}}', "5")
    checkpoint.write("sources/0/0", '\0v1\n{"orders":{"0":0}}')
    assert checkpoint.files(0) == {"0": {"0": ["\0v1", {"orders": {"0": 0}}]}}


@pytest.mark.parametrize(
    ("offsets", "newest", "folders"),
    [
        ([5, 7], {0: 5, 1: 7}, None),
        ([5, 5], {0: 5}, ["0", "0"]),
        ([5, None, 5], {0: 5}, ["0", "1", "0"]),
        ([5, 5, 7], {0: 5, 1: 7}, ["0", "0", "1"]),
        ([None, None, 0], {0: 0, 1: 0}, ["0", "1", "1"]),  # Kafka's source, twice, and its folder
        ([5, 7], {0: 6, 1: 7}, None),  # taken up since
    ],
)
def test_a_source_that_a_plan_has_twice_has_one_folder(
    checkpoint: Checkpoint, offsets: list[int | None], newest: dict[int, int], folders: list[str] | None
) -> None:
    lines = ['{"orders":{"0":1}}' if n is None else f'{{"logOffset":{n}}}' for n in offsets]
    checkpoint.plan(1, *lines)
    checkpoint.plan(2, *lines)
    for source, number in newest.items():
        checkpoint.write(f"sources/{source}/{number}", f"v1\n{line(number)}")
    assert checkpoint.folder.reads(2).get("folders") == folders
