"""Run a command that the system kills when the process that started it is gone.

Run by its path, as `python -I -S bound_process.py PARENT_PID COMMAND ...`: it imports nothing of the package,
so that it costs some hundredths of a second, and then becomes the command (`exec`), under the same process
id.

Linux: `prctl(PR_SET_PDEATHSIG)`, which outlives exec. It takes effect when the *thread* that started this
    process ends, so that thread must live as long as the command may; see `KafkaBroker`. Elsewhere there is
    no equivalent, and the command is only ended by its owner's clean stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _main(arguments: list[str]) -> None:
    parent_pid, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the line above: then no signal would ever come.
        if os.getppid() != parent_pid:
            sys.exit("the process that wanted this command is gone")
    os.execv(command[0], command)  # noqa: S606 - to keep the process id, and no shell is wanted


if __name__ == "__main__":
    _main(sys.argv[1:])
