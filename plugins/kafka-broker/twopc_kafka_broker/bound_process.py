"""Run a command that the kernel kills when its parent process ends.

Run by path, as `python -I -S bound_process.py PARENT_PID COMMAND ...`. The script imports nothing from the package, so
it takes only a few hundredths of a second. It then becomes the command (`exec`), with the same process id.

Linux: `prctl(PR_SET_PDEATHSIG)`, which survives exec. The signal is sent when the *thread* that started this
    process ends, so that thread must live as long as the command; see `_spawn`. Other systems have no
    equivalent: there, only its owner's clean stop ends the command.
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
        # If the parent died before the line above, no signal will ever come.
        if os.getppid() != parent_pid:
            sys.exit("the process that wanted this command is gone")
    os.execv(command[0], command)  # noqa: S606 - keeps the process id, without a shell


if __name__ == "__main__":
    _main(sys.argv[1:])
