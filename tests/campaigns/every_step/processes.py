"""The processes of a case: each is forked, leaves notes for the others, and may be killed."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twopc.stores import folder

AT_MOST_S = 120
"""The longest time of a process. A process that hangs is ended and reported."""

LOOKS_EVERY_S = 0.01


def in_a_process(call: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> int:
    """Run ``call`` in a forked process, which has all imports done. Return its status, as from ``os.wait``. Call
    ``meanwhile`` repeatedly until it ends.

    Upholds: a process that forks has created no file system and no thread.
    """
    child = os.fork()
    if child:
        while meanwhile and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            meanwhile()
            time.sleep(LOOKS_EVERY_S)
        return os.waitpid(child, 0)[1]
    try:
        signal.alarm(AT_MOST_S)
        call()
    except BaseException:  # noqa: BLE001  # the status reports it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def is_of_a_kill(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def note(work: Path, name: str, value: object) -> None:
    """Leave a value for the case's other processes, in its folder ``work``."""
    (work / f"{name}.noted").write_text(json.dumps(value))


def noted(work: Path, name: str) -> Any:
    """Return the value that another process has left; None if there is none."""
    path = work / f"{name}.noted"
    return json.loads(path.read_text()) if path.exists() else None


def let_an_hour_pass(work: Path, is_on_disk: bool) -> None:
    """Make the temporary files of killed processes old enough to be removed: they are kept for an hour, because their
    writer may only be slow. Object stores set the times of their objects, so for these the limit changes."""
    for pattern in ("*.aside", "*.probe"):
        for path in work.rglob(pattern):
            os.utime(path, (time.time() - 7200,) * 2)
    if not is_on_disk:
        folder.ASIDE_LIVES_S = -1
