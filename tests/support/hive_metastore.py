"""A real Hive Metastore from its Maven artifacts, with a Derby database on the local disk."""

import contextlib
import functools
import os
from pathlib import Path

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import DataOperationType, LockComponent, LockLevel, LockRequest, LockType, UnlockRequest
from thrift.Thrift import TException
from thrift.transport.TTransport import TTransportException

from tests.support.kills import bound
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess
from twopc_iceberg.hive import _Connections
from twopc_kafka_broker.errors import DevelopmentError
from twopc_kafka_broker.jars import maven_jars
from twopc_kafka_broker.java import find_java

VERSION = "3.1.3"
START_TIMEOUT_S = 120.0

_MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_TASKS = "org.apache.hadoop.hive.metastore.events.EventCleanerTask"
_EXPRESSIONS = "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy"


@functools.cache
def why_not() -> str | None:
    """Return why the metastore can't run here and what is missing; None if it can."""
    try:
        find_java()
        jars()
    except DevelopmentError as error:
        return f"Hive Metastore needs Java and its jars: {error}"
    return None


def jars() -> tuple[Path, ...]:
    """Return the jars of the server, downloaded on first use."""
    return maven_jars(
        f"hive-standalone-metastore-{VERSION}",
        f"org.apache.hive:hive-standalone-metastore:{VERSION}",
        "org.apache.hadoop:hadoop-client:3.3.6",
        "org.apache.derby:derby:10.14.2.0",
    )


class HiveMetastore(ServerProcess):
    """A metastore on a free port. Port and data survive a kill and a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self._port}"

    def connections(self) -> _Connections:
        return _Connections(("127.0.0.1", self._port), None, (10, 60))

    def start(self) -> None:
        if not (self._folder / "db").exists():  # only with hive.in.test, the first lock creates the lock tables
            self._run(in_test=True)
            with self.connections() as client:
                self._lock_once(client)
            self.kill()
        self._run(in_test=False)

    def _lock_once(self, client: Client) -> None:
        component = LockComponent(
            LockType.EXCLUSIVE, LockLevel.TABLE, "default", "none", operationType=DataOperationType.NO_TXN
        )
        lock = client.lock(LockRequest([component], user="tests", hostname="localhost", agentInfo="tests"))
        client.unlock(UnlockRequest(lock.lockid))

    def _run(self, *, in_test: bool) -> None:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:{self._folder}/db;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "metastore.expression.proxy": _EXPRESSIONS,
            "metastore.task.threads.always": _TASKS,
            "metastore.warehouse.dir": f"file://{self._folder}/warehouse",
            "hive.in.test": str(in_test).lower(),
        }
        values = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in settings.items())
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "metastore-site.xml").write_text(f"<configuration>{values}</configuration>")
        path = os.pathsep.join([str(self._folder), *map(str, jars())])
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dderby.stream.error.file={self._folder}/derby.log")
        command = bound(str(find_java().executable), *options, "-cp", path, _MAIN, "-p", str(self._port))
        self._start("Hive Metastore", command, self._folder / "log", START_TIMEOUT_S, cwd=self._folder)

    def _answers(self) -> bool:
        with contextlib.suppress(TTransportException, TException), self.connections() as client:
            return bool(client.get_all_databases())
        return False
