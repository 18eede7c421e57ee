"""A writer is killed, and another process settles what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.parquet as pq
import pytest

from twopc import Committable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twopc_files.sink import FileSink

MakeSink: TypeAlias = "Callable[..., FileSink]"

pytestmark = pytest.mark.crash

WRITER = """
import json, os, signal, sys
import pyarrow as pa
from twopc import Participant, Round
from twopc_files.sink import FileSink

sink = FileSink({"path": sys.argv[1]})
sink.bind("orders", "log")
participant = Participant({"orders": sink}, Round(1, 7), partition=3)
participant.write("orders", pa.record_batch({"n": pa.array(range(1000))}))
if sys.argv[2] == "after pre-commit":
    print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(folder: Path, when: str) -> str:
    command = [sys.executable, "-c", WRITER, str(folder), when]
    writer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert writer.returncode == -9, writer.stderr
    return writer.stdout


def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    folder: Path, make_sink: MakeSink
) -> None:
    committable = Committable.from_json(json.loads(killed_writer(folder, "after pre-commit")))
    assert list(folder.rglob("*.parquet")) == []
    sink = make_sink()
    sink.seal([committable], age_s=0)
    sink.commit(committable)
    [file] = folder.rglob("*.parquet")
    assert pq.read_table(file)["n"].to_pylist() == list(range(1000))
    assert list((folder / "_twopc").iterdir()) == []


@pytest.mark.parametrize("when", ["before pre-commit", "after pre-commit"])
def test_what_a_killed_writer_left_undecided_is_found_and_removed(when: str, folder: Path, make_sink: MakeSink) -> None:
    killed_writer(folder, when)
    sink = make_sink()
    [found] = sink.recover()
    sink.abort(found)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
