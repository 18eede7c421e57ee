"""A commit log in PostgreSQL: its calls as steps, and a server that is killed during an append."""

import time
from typing import Any

import psutil

from tests.campaigns.every_step.blows import Strike
from tests.campaigns.every_step.steps import Steps, on_disk
from tests.support.postgres_server import PostgresServer
from twopc_postgres.log.table import LogTable
from twopc_postgres.sessions import Connection


def on_postgres(steps: Steps) -> None:
    """Turn each statement to the server into a step, and what the sink does on its disk."""

    def described(connection: Connection, query: Any, *_: object, **__: object) -> tuple[str, bool]:
        text = query if isinstance(query, str) else query.as_string(connection)
        verb = text.rpartition(";")[2].split()[0]  # after the bound of the wait for a lock
        return verb, verb != "SELECT"

    steps.patch_requests(Connection, "execute", described)
    on_disk(steps)


def watch_appends(strike: Strike) -> None:
    """An insert into the log commits a batch."""
    strike.watch(LogTable, "insert")


class StruckPostgres(PostgresServer):
    """A server of which a blow kills the first process. The others are killed before it starts again."""

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which a log store reaches the server. A restart does not change them."""
        return {"host": str(self._folder), "user": "postgres", "password": self.password}

    def restart_if_killed(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            while left := self._left():
                for process in left:
                    process.kill()
                time.sleep(0.01)
            self._process = None
            self.start()

    def _left(self) -> list[psutil.Process]:
        """Its processes, which all run in its folder of data."""
        data = str(self._folder / "data")
        return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == data]
