"""The command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys

# A shell that starts the tests in the background has them ignore Ctrl-C, and whatever they start.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import twopc.cli; twopc.cli.main()"


class Terminal:
    """A command on a terminal of its own, and what it has shown there."""

    def __init__(self, *arguments: object) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        size = {"COLUMNS": "160", "LINES": "50", "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | size)
        os.close(theirs)
        self._shown = ""

    def shows(self, text: str) -> bool:
        """Whether it has shown ``text`` since it last was asked for one that it had."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._shown += os.read(self._ours, 65536).decode()
            except OSError:  # the process has ended
                break
        before, found, after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown).partition(text)
        assert "Traceback" not in before
        self._shown = after if found else self._shown
        return bool(found)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        os.close(self._ours)
