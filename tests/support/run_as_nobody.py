"""Run a command as ``nobody``. On Linux, the system kills it when its parent process ends.

``python -I -S run_as_nobody.py BOUND_PROCESS PARENT_PID COMMAND ...``, run by root, since PostgreSQL refuses to run as
root. It drops privileges before it requests the parent-death signal, which a change of user would clear.
"""

import os
import pwd
import runpy
import sys

if __name__ == "__main__":
    bound = runpy.run_path(sys.argv[1])  # read before dropping privileges
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    bound["_main"](sys.argv[2:])
