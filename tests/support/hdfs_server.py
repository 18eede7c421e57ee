"""A real HDFS from its Maven artifacts: a NameNode and a DataNode, as separate processes whose data survives a kill."""

import functools
import getpass
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.kills import bound
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess, Startable
from twopc_kafka_broker.errors import DevelopmentError
from twopc_kafka_broker.jars import maven_jars
from twopc_kafka_broker.java import find_java

VERSION = "3.5.0"
START_TIMEOUT_S = 120.0
TEST_AT_MOST_S = 600
"""The timeout of a test that may start both processes on a busy machine: each may take a while, and each request of a
client may wait for a minute."""

USER = "orders"
"""A user with a home folder but without special permissions."""

HOME = f"/user/{USER}"

SUPERUSER = getpass.getuser()
"""The user that starts the NameNode, who may do anything."""

_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")


@functools.cache
def why_not() -> str | None:
    """Return why HDFS can't run here and what is missing; None if it can."""
    try:
        _java()
        jars()
    except DevelopmentError as error:
        return f"HDFS needs Java and its jars: {error}"
    return None


def jars() -> tuple[Path, ...]:
    """Return the jars of the servers, downloaded on first use (110 MB)."""
    return maven_jars(f"hadoop-minicluster-{VERSION}", f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}")


class _Daemon(ServerProcess):
    """The NameNode or the DataNode."""

    _asked = "/jmx?qry=none"

    def __init__(self, name: str, main: str, folder: Path, port: int) -> None:
        self._name, self.main, self._folder = name, main, folder
        self.port = self._port = port
        self.log = folder / f"{name}.log"

    def start(self) -> None:
        self._start(self._name, bound(*command(self._folder, self.main)), self.log, START_TIMEOUT_S)


@functools.cache
def _java() -> Path:
    return find_java().executable


def command(folder: Path, main: str, *arguments: str) -> list[str]:
    """Return the command that runs a class of Hadoop with the settings in ``folder``."""
    path = os.pathsep.join([str(folder), *map(str, jars())])
    return [str(_java()), *_OPTIONS, "-cp", path, main, *arguments]


class HdfsServer(Startable):
    """A cluster of a NameNode and a DataNode. After a kill and a ``start``, data and addresses are the same.

    Args:
        folder: for data, settings and logs.
        settings: properties in addition to the defaults below.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        rpc, name_node, data_node = free_port(), free_port(), free_port()
        local = "127.0.0.1"
        self._settings = {
            "fs.defaultFS": f"hdfs://{local}:{rpc}",
            "hadoop.tmp.dir": str(folder / "tmp"),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "true",
            "dfs.namenode.name.dir": str(folder / "name"),
            "dfs.namenode.rpc-address": f"{local}:{rpc}",
            "dfs.namenode.http-address": f"{local}:{name_node}",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": "1",
            "dfs.namenode.resource.du.reserved": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.data.dir": str(folder / "data"),
            "dfs.datanode.hostname": local,
            "dfs.datanode.address": f"{local}:{free_port()}",
            "dfs.datanode.ipc.address": f"{local}:{free_port()}",
            "dfs.datanode.http.address": f"{local}:{data_node}",
            "dfs.heartbeat.interval": "1",
            "ipc.client.connect.retry.interval": "100",
            **(settings or {}),
        }
        package = "org.apache.hadoop.hdfs.server"
        self.name_node = _Daemon("NameNode", f"{package}.namenode.NameNode", folder, name_node)
        self.data_node = _Daemon("DataNode", f"{package}.datanode.DataNode", folder, data_node)

    @property
    def port(self) -> int:
        """The NameNode's port for WebHDFS."""
        return self.name_node.port

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which fsspec's ``webhdfs`` accesses it, even by a URL without a host."""
        return {"host": "127.0.0.1", "port": self.port, "user": USER}

    def url(self, path: str) -> str:
        return f"webhdfs://127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        """Start missing processes, and return when files can be written."""
        if not (self._folder / "name").is_dir():
            self._format()
        for daemon in (self.name_node, self.data_node):
            if not daemon.is_running:
                daemon.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._takes_files():
            log = "\n".join(each.log.read_text(errors="replace")[-4000:] for each in (self.name_node, self.data_node))
            assert time.monotonic() < deadline, f"HDFS takes no file:\n{log}"
            time.sleep(0.05)

    def _format(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        values = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in self._settings.items())
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self._folder / name).write_text(f"<configuration>{values}</configuration>")
        formatting = command(self._folder, self.name_node.main, "-format", "-nonInteractive")
        done = subprocess.run(formatting, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _takes_files(self) -> bool:
        try:
            self.ask("PUT", HOME, "MKDIRS")
            self.ask("PUT", HOME, "SETOWNER", owner=USER)
            # The NameNode still names a killed DataNode, and a starting one may delay a request. This uses the tests'
            # user: a DataNode has one connection to the NameNode per user, and if the NameNode was killed, the first
            # request on it fails.
            self._ask_data_node("PUT", "CREATE", b"x", overwrite="true")
            return self._ask_data_node("GET", "OPEN") == b"x"
        except OSError:  # also in safe mode
            return False

    def _ask_data_node(self, method: str, operation: str, data: bytes | None = None, **parameters: str) -> bytes:
        named = self.ask(method, f"{HOME}/.started", operation, USER, noredirect="true", **parameters)
        request = urllib.request.Request(named["Location"], data=data, method=method)  # noqa: S310  # always http
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # always http
            contents: bytes = answer.read()
            return contents

    def ask(self, method: str, path: str, operation: str, user: str = SUPERUSER, **parameters: str) -> Any:
        """Return the NameNode's response to a WebHDFS operation."""
        query = urlencode({"op": operation, "user.name": user, **parameters})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/webhdfs/v1{quote(path)}?{query}", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # always http
            text = answer.read()
        return json.loads(text) if text else None

    def data_node_syncs(self) -> int:
        """Return how often the DataNode has synced a file since its start. Lags by a few seconds."""
        query = "Hadoop:service=DataNode,name=DataNodeActivity-*"
        url = f"http://127.0.0.1:{self.data_node.port}/jmx?qry={quote(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(json.load(answer)["beans"][0]["FsyncCount"])

    def admin(self, *arguments: str) -> None:
        """Run ``hdfs dfsadmin``."""
        subprocess.run(
            command(self._folder, "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments), check=True, capture_output=True
        )

    @property
    def pid(self) -> int:
        """The NameNode's process id."""
        return self.name_node.pid

    def restart_if_killed(self) -> None:
        """Restart the NameNode if it was killed."""
        if not self.name_node.is_running:
            self.start()

    def close(self) -> None:
        """End the cluster and remove its data."""
        self.name_node.close()
        self.data_node.close()
        shutil.rmtree(self._folder, ignore_errors=True)
