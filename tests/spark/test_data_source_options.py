"""The options of ``format("twopc")``, without a session."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from twopc.errors import ConfigurationError
from twopc.spark.data_source.options import batch_target, stream_target
from twopc.spark.doctor import sinks_and_log


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": "a-query"}))
    return tmp_path


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "file:{0}", "file://{0}"])
def test_the_query_and_its_log_are_found_in_the_checkpoint_folder_however_it_is_spelled(
    checkpoint: Path, spelling: str
) -> None:
    target = stream_target({"sink": "kafka", "checkpointlocation": spelling.format(checkpoint)})
    assert target.owner == "a-query"
    assert target.log.removeprefix("file://") == f"{checkpoint}/twopc-log"


def test_what_is_not_its_own_goes_to_the_sink_and_is_not_shown(checkpoint: Path) -> None:
    own = {"checkpointlocation": str(checkpoint), "log": "/log", "replay_copies": "/stage", "first_batch_id": "7"}
    target = stream_target({"sink": "kafka", **own, "topic": "t", "sasl.password": "secret"})
    assert target.options == {"topic": "t", "sasl.password": "secret"}
    assert (target.log, target.replay_copies, target.first_batch_id) == ("/log", "/stage", 7)
    assert "secret" not in repr(target)


@pytest.mark.parametrize("metadata", [None, "", "{}", "[]"])
def test_a_checkpoint_folder_that_cannot_be_read_is_refused(tmp_path: Path, metadata: str | None) -> None:
    if metadata is not None:
        (tmp_path / "metadata").write_text(metadata)
    with pytest.raises(ConfigurationError, match="the query's id can't be read from"):
        stream_target({"sink": "kafka", "checkpointlocation": str(tmp_path)})


def test_a_query_without_the_option_is_told_why_it_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="needs the option 'checkpointLocation'"):
        stream_target({"sink": "kafka"})


WHOLE = "must be a whole number, 0 or more"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": ""}, "needs the option 'sink'"),
        ({"batch_id": "1"}, "'batch_id' is for batch writes"),
        ({"first_batch_id": "-1"}, rf"'first_batch_id' of format\('twopc'\) {WHOLE}"),
        ({"log": "memory://log"}, "is in one process's memory"),
    ],
)
def test_a_wrong_option_of_a_query_is_refused(checkpoint: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        stream_target({"sink": "files", "checkpointlocation": str(checkpoint), **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": "oracle"}, "no backend is named 'oracle'"),
        ({"compresion": "zstd"}, "has no option 'compresion'. Did you mean 'compression'"),
        ({"batch_id": "first"}, f"'batch_id' of a batch write {WHOLE}"),
    ],
)
def test_a_wrong_option_of_a_batch_write_is_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    given = {"sink": "files", "path": str(tmp_path / "archive"), "log": str(tmp_path / "log"), **options}
    with pytest.raises(ConfigurationError, match=said):
        batch_target(given)[0].open(pa.schema([("key", pa.string())]))
    assert list(tmp_path.iterdir()) == []


def test_a_batch_write_has_its_number_from_the_option() -> None:
    assert batch_target({"sink": "kafka", "log": "/log", "batch_id": "3"})[1] == 3
    assert batch_target({"sink": "kafka", "log": "/log"})[1] is None


@pytest.mark.parametrize("given", ["/var/log/e.jsonl", "file:/var/log/e.jsonl", "file:///var/log/e.jsonl"])
def test_the_events_file_is_a_local_path_however_it_is_spelled(checkpoint: Path, given: str) -> None:
    target = stream_target({"sink": "kafka", "checkpointlocation": str(checkpoint), "events": given})
    assert target.events == "/var/log/e.jsonl"


@pytest.mark.variants
@pytest.mark.parametrize("given", ["e.jsonl", "s3://bucket/e.jsonl", "file://host/e.jsonl", "/var/log/", " "])
def test_events_are_not_written_elsewhere_than_to_a_local_file(checkpoint: Path, given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'events' of format\('twopc'\) must be the absolute path"):
        stream_target({"sink": "kafka", "checkpointlocation": str(checkpoint), "events": given})


@pytest.mark.parametrize(
    ("backend", "own"),
    [
        ("delta", {"path": "/orders"}),
        ("iceberg", {"table": "db.orders", "catalog": "lake"}),
        ("kafka", {"topic": "orders", "bootstrap.servers": "127.0.0.1:1"}),
    ],
)
def test_a_sink_that_would_keep_two_rows_of_a_key_is_refused(tmp_path: Path, backend: str, own: dict[str, str]) -> None:
    given = {"sink": backend, "log": str(tmp_path / "log"), **own, "upsert_by": "key"}
    target, _ = batch_target(given)
    for act in (lambda: target.open(pa.schema([("key", pa.string())])), lambda: sinks_and_log(given)):
        with pytest.raises(ConfigurationError, match=f"'{backend}' .* one record per key .* write with foreach_batch"):
            act()
    assert not (tmp_path / "log").exists()
