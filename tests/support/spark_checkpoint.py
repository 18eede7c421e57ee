"""Simulates a power cut that removes the newest files of Spark's checkpoint, since Spark does not sync them; and
repairs it."""

import subprocess
import sys
from collections import Counter
from enum import Enum
from pathlib import Path

REPAIR_S = 60


class Loss(Enum):
    """The parts of the checkpoint that a power cut removes. The log is synced and keeps everything."""

    ONE_BATCH = "newest batch"
    TWO_BATCHES = "two newest batches"
    PLAN = "what the newest batch reads"
    COMMIT = "that the newest batch is done"


class Checkpoint:
    """The checkpoint of a query that is not running.

    Attributes:
        is_damaged: whether a loss has not been repaired, so that the query may refuse to continue.
        lost: kind of loss → how often it has happened.
        repairs: the number of successful and of failed repairs.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        self.is_damaged = False
        self.lost, self.repairs = Counter[str](), Counter[str]()

    def lose(self, loss: Loss) -> bool:
        """Remove a part of the checkpoint. Return whether there was anything to remove."""
        planned = sorted((int(path.name) for path in (self._folder / "offsets").glob("[0-9]*")), reverse=True)
        batches = planned[: 2 if loss is Loss.TWO_BATCHES else 1]
        kinds = {Loss.PLAN: ["offsets"], Loss.COMMIT: ["commits"]}.get(loss, ["offsets", "commits"])
        files = [self._folder / kind / str(batch) for kind in kinds for batch in batches]
        if len(planned) < 3 or not any(file.exists() for file in files):  # keep at least one batch
            return False
        for file in files:
            file.unlink(missing_ok=True)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        self.is_damaged = True
        self.lost[loss.value] += 1
        return True

    def repair(self) -> None:
        """Repair the checkpoint, as an operator would after it has stopped the query."""
        command = ["checkpoint", "repair", str(self._folder), str(self._log), "--yes"]
        done = subprocess.run(
            [sys.executable, "-m", "twopc.cli", *command], capture_output=True, text=True, timeout=REPAIR_S, check=False
        )
        with (self._folder.parent / "repairs.log").open("a", encoding="utf-8") as log:
            log.write(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}\n")
        self.repairs["failed" if done.returncode else "done"] += 1
        self.is_damaged = bool(done.returncode)
