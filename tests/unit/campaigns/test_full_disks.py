"""The commit log on a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commit_log import CommitLog
from tests.support.full_disks import LACKS, Disk, Lack, in_namespace
from twopc.errors import InDoubt
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.store import open_store
from twopc.transactional_ids import Round


@pytest.mark.long
@pytest.mark.parametrize(
    ("lack", "names_left"), [("bytes", 0), ("names", 0), ("names", 1)], ids=["write", "create", "link"]
)
def test_an_append_to_a_full_disk_is_in_doubt_and_leaves_the_log_as_it_was(
    lack: Lack, names_left: int, tmp_path: Path
) -> None:
    command, obstacle = in_namespace()
    if not command:
        pytest.skip(f"can't mount a disk to fill: {obstacle}")
    program = [
        sys.executable,
        "-m",
        "tests.unit.campaigns.test_full_disks",
        str(tmp_path / "disk"),
        lack,
        str(names_left),
    ]
    ended = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def append_to_a_full_disk(folder: Path, lack: Lack, names_left: int) -> None:
    disk, store = Disk(folder), open_store(str(folder))
    log = CommitLog.open(store, "query")
    log.decide(Decision(Round(1, 0), {}))
    before = read_tail(store)
    disk.fill(lack, names_left)
    with pytest.raises(InDoubt, match="No space left on device"):
        log.decide(Decision(Round(1, 1), {}))
    with pytest.raises(InDoubt, match="No space left on device"):
        CommitLog.open(store, "query")
    assert read_tail(store) == before
    disk.free()
    assert [path.suffix for path in folder.iterdir()] == [".json", ".json"]  # and no temporary file
    assert CommitLog.open(store, "query").tail.decided == 0


if __name__ == "__main__":
    append_to_a_full_disk(Path(sys.argv[1]), LACKS[LACKS.index(sys.argv[2])], int(sys.argv[3]))
