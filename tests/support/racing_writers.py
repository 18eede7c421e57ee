"""Processes that try to create the same entry of a commit log at the same moment."""

import os
import subprocess
import sys
from collections.abc import Mapping

_WRITER = """
import sys, twopc
store = twopc.open_store(sys.argv[1], **dict(pair.split("=", 1) for pair in sys.argv[3:]))
store.slots(); print("ready", flush=True); sys.stdin.readline()
try: store.put_if_absent(0, sys.argv[2].encode()); print("won")
except FileExistsError: print("refused")
"""


def race(writers: int, url: str, environment: Mapping[str, str] | None = None, **options: str) -> list[str]:
    """Have processes put their numbers as entry 0 of the log at ``url``. Return each one's outcome, ``won`` or
    ``refused``."""
    given = [f"{name}={value}" for name, value in options.items()]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, url, str(number), *given],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    try:
        for writer in started:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in started:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        return [writer.communicate(timeout=60)[0].strip() for writer in started]
    finally:
        for writer in started:
            writer.kill()
            writer.wait()
