"""What campaigns measure, redirect, step and fill: slopes, seams, clocks and disks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.jepsen.clocks import Clocks, why_not
from tests.campaigns.seams import Seam, nothing, patched
from tests.support.commit_log import CommitLog
from tests.support.full_disks import LACKS, Disk, Lack, in_namespace
from twopc.errors import InDoubt
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.store import open_store
from twopc.transactional_ids import Round


class Base:
    def inherited(self) -> str:
        return "real"


class Derived(Base):
    def own(self) -> str:
        return "real"


def test_a_class_has_its_own_functions_and_no_others_when_its_seams_are_closed() -> None:
    before = dict(vars(Derived))
    seams = [Seam(f"{__name__}:Derived.{name}", nothing) for name in ("inherited", "own", "inherited")]
    with patched(seams):
        assert Derived().inherited() is Derived().own() is None
    assert dict(vars(Derived)) == before
    assert Derived().inherited() == "real"


PROGRAM = """
import sys, threading, time
import confluent_kafka
consumer = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
for _ in sys.stdin:
    began_s = time.monotonic()
    threading.Event().wait(0.1)
    consumer.poll(0.1)
    print(time.time(), began_s, time.monotonic() - began_s, flush=True)
"""


@pytest.mark.variants
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_step_moves_the_wall_clock_at_once_and_no_wait_takes_longer(seconds: int, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    clocks = Clocks(tmp_path / "clocks")
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, **clocks.environment("driver1")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        looks = []
        for step in (0, seconds, -seconds):
            clocks.step("driver1", step)
            process.stdin.write("\n")
            process.stdin.flush()
            looks.append([float(value) for value in process.stdout.readline().split()])
        process.stdin.close()
    wall_s, monotonic_s, waited_s = zip(*looks, strict=True)
    assert wall_s[1] - wall_s[0] == pytest.approx(seconds, abs=30)
    assert wall_s[2] - wall_s[1] == pytest.approx(-seconds, abs=30)
    assert monotonic_s[2] - monotonic_s[0] < 30
    assert max(waited_s) < 5


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
    program = [sys.executable, "-m", __name__, str(tmp_path / "disk"), lack, str(names_left)]
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
