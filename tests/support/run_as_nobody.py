"""Run a command as ``nobody``. The system kills it when the process that started it is gone (on Linux).

``python -I -S run_as_nobody.py BOUND_PROCESS PARENT_PID COMMAND ...``, by root: PostgreSQL refuses to run as root. The
rights are given up before the death signal is asked for, as giving them up would take it back.
"""

import os
import pwd
import runpy
import sys

if __name__ == "__main__":
    bound = runpy.run_path(sys.argv[1])  # read while that is allowed
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    bound["_main"](sys.argv[2:])
