"""A real HDFS from its Maven artifacts: a NameNode and a DataNode, each a process of its own that survives a kill."""

import functools
import getpass
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.kills import bound
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess, Startable, has_answer
from twopc_kafka_broker.errors import DevelopmentError
from twopc_kafka_broker.jars import maven_jars
from twopc_kafka_broker.java import find_java

VERSION = "3.5.0"
START_TIMEOUT_S = 120.0
TEST_AT_MOST_S = 600
"""The limit of a test that may start both processes, on a machine with much other work: each may take a while, and each
request of a client may wait for a minute."""

USER = "orders"
"""A user without special rights, who has a home folder."""

HOME = f"/user/{USER}"

SUPERUSER = getpass.getuser()
"""Who starts the NameNode may do anything."""

_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")


@functools.cache
def why_not() -> str | None:
    """Return why HDFS can't run here and what is missing, or None if it can."""
    try:
        _java()
        jars()
    except DevelopmentError as error:
        return f"HDFS needs Java and its jars: {error}"
    return None


def jars() -> tuple[Path, ...]:
    """Return the jars of the servers, downloaded the first time (110 MB)."""
    return maven_jars(f"hadoop-minicluster-{VERSION}", f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}")


class _Daemon(ServerProcess):
    """One of the two processes."""

    def __init__(self, name: str, main: str, folder: Path, port: int) -> None:
        self._name, self.main, self._folder = name, main, folder
        self.port = port
        self.log = folder / f"{name}.log"

    def start(self) -> None:
        self._start(self._name, bound(*command(self._folder, self.main)), self.log, START_TIMEOUT_S)

    def _answers(self) -> bool:
        return has_answer(f"http://127.0.0.1:{self.port}/jmx?qry=none")


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
        settings: properties in addition to those of every test.
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
        """The options with which fsspec's ``webhdfs`` reaches it, also by a URL without a host."""
        return {"host": "127.0.0.1", "port": self.port, "user": USER}

    def url(self, path: str) -> str:
        return f"webhdfs://127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        """Start what does not run, and return when files can be written."""
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
            # The NameNode still names a DataNode that was killed, and one that starts may keep a request waiting. As
            # the user of the tests: a DataNode has a connection to the NameNode for each user, and one that is dead
            # since the NameNode was killed fails the first request on it.
            self._ask_data_node("PUT", "CREATE", b"x", overwrite="true")
            return self._ask_data_node("GET", "OPEN") == b"x"
        except OSError:  # its safe mode included
            return False

    def _ask_data_node(self, method: str, operation: str, data: bytes | None = None, **parameters: str) -> bytes:
        named = self.ask(method, f"{HOME}/.started", operation, USER, noredirect="true", **parameters)
        request = urllib.request.Request(named["Location"], data=data, method=method)  # noqa: S310  # always http
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # always http
            contents: bytes = answer.read()
            return contents

    def ask(self, method: str, path: str, operation: str, user: str = SUPERUSER, **parameters: str) -> Any:
        """Return what the NameNode answers to an operation of WebHDFS."""
        query = urlencode({"op": operation, "user.name": user, **parameters})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/webhdfs/v1{quote(path)}?{query}", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # always http
            text = answer.read()
        return json.loads(text) if text else None

    def data_node_syncs(self) -> int:
        """Return how often the DataNode has synced a file since its start, as it was known some seconds
        ago."""
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
        """The NameNode's process."""
        return self.name_node.pid

    def restart_if_killed(self) -> None:
        """Start the NameNode again if somebody has killed it."""
        if not self.name_node.is_running:
            self.start()

    def close(self) -> None:
        """End the cluster and remove its data."""
        self.name_node.close()
        self.data_node.close()
        shutil.rmtree(self._folder, ignore_errors=True)
