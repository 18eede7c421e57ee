"""The procedures of ``docs/change-a-query.md``, and that of a lost log, with a loop without Spark: they lose and double
nothing."""

import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import twopc
from tests.support.pages import DOCS
from tests.support.phase_one import writes
from twopc.errors import LogMismatch, OperatorRequired
from twopc_files.sink import FileSink


class Query:
    """A query that writes the number of each batch to its sinks, and is stopped cleanly after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = f"{folder}/log"
        self.done = 0

    def run(self, sinks: Mapping[str, str], **options: Any) -> None:
        """Write one batch to sinks that are given by name and folder."""
        made = {name: twopc.create_sink("files", {"path": f"{self.folder}/{path}"}) for name, path in sinks.items()}
        with twopc.Coordinator(made, self.log, owner="query", **options) as coordinator:
            coordinator.recover()
            coordinator.run(self.done, writes(made, {"id": [self.done]}))
        self.done += 1

    def written(self, path: str) -> list[int]:
        return sorted(pq.read_table(self.folder / path)["id"].to_pylist())


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_a_sink_is_added_removed_and_renamed_after_a_clean_stop(query: Query) -> None:
    query.run({"orders": "orders"})
    query.run({"orders": "orders", "archive": "archive"})
    query.run({"archive": "archive"})
    query.run({"bills": "orders", "archive": "archive"})
    assert query.written("orders") == [0, 1, 3]
    assert query.written("archive") == [1, 2, 3]


def test_another_place_under_a_new_name_gets_the_later_batches(query: Query) -> None:
    query.run({"orders": "orders"})
    query.run({"orders-2": "elsewhere"})
    assert (query.written("orders"), query.written("elsewhere")) == ([0], [1])


def test_a_log_goes_on_where_its_entries_were_copied_to(query: Query, tmp_path: Path) -> None:
    query.run({"orders": "orders"})
    copied = tmp_path / "copied"
    copied.mkdir()
    for entry in Path(query.log).iterdir():
        if re.fullmatch(r"\d{20}\.json", entry.name):
            shutil.copy(entry, copied)
    shutil.move(query.log, tmp_path / "old")
    query.log = str(copied)
    query.run({"orders": "orders"})
    assert query.written("orders") == [0, 1]


def test_a_new_log_takes_over_at_the_batch_that_it_is_told(query: Query, tmp_path: Path) -> None:
    query.run({"orders": "orders"})
    query.log = str(tmp_path / "new")
    with pytest.raises(LogMismatch, match=r"first_batch_id=1"):
        query.run({"orders": "orders"})
    query.run({"orders": "orders"}, first_batch_id=1)
    query.run({"orders": "orders"}, first_batch_id=1)  # later starts may keep it
    assert query.written("orders") == [0, 1, 2]


@pytest.mark.parametrize("has_it", [["orders"], ["orders", "archive"]])
def test_a_lost_log_is_replaced_by_a_new_one_at_the_batch_that_was_not_finished(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_it: list[str]
) -> None:
    sinks = {"orders": "orders", "archive": "archive"}
    query.run(sinks)
    commit = FileSink.commit

    def committed_in_some(sink: FileSink, committable: Any) -> None:
        if not any(f".{name}." in committable.transaction_id for name in has_it):
            raise OperatorRequired("the driver is lost here")
        commit(sink, committable)

    with monkeypatch.context() as patched, contextlib.suppress(OperatorRequired):
        patched.setattr(FileSink, "commit", committed_in_some)
        query.run(sinks)
    query.done = 1  # in the checkpoint
    shutil.rmtree(query.log)
    with pytest.raises(LogMismatch, match=r"is empty.*first_batch_id=1"):
        query.run(sinks)

    for pending in (tmp_path / "archive" / "_twopc").iterdir():
        pending.unlink()
    there = [name for name in sinks if [*(tmp_path / name).glob(f"part-{1:020d}-*")]]
    assert there == has_it
    lacking = {name: path for name, path in sinks.items() if name not in there}
    query.run(lacking or {"temporary": "temporary"}, first_batch_id=1)
    query.run(sinks)
    assert query.written("orders") == query.written("archive") == [0, 1, 2]


def test_each_procedure_of_the_page_has_numbered_steps() -> None:
    page = (DOCS / "change-a-query.md").read_text(encoding="utf-8")
    sections = [section for section in page.split("\n## ")[1:] if not section.startswith("Change the way")]
    assert [section.partition("\n")[0] for section in sections if "\n1. " not in section] == []
