"""A real Pravega cluster from its Maven artifacts: a controller, a segment store and a bookie, each as a process.

The standalone server from the same artifacts keeps everything in memory, and loses all streams when killed.

Pravega listens on every address. So the cluster runs in a network namespace, and connections to its ports on this
machine's loopback are relayed there.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from tests.support import networks
from tests.support.kills import bound, go_on, stand_still
from tests.support.networks import Host
from tests.support.server_process import ServerProcess, Startable
from tests.support.waiting import until
from twopc_kafka_broker.cache import cache_folder, publish
from twopc_pravega.controller import Controller
from twopc_pravega.events import unframed
from twopc_pravega.messages import PROTO, load
from twopc_pravega.options import PravegaOptions, Server, Stream
from twopc_pravega.segments import Place

VERSION = "0.13.0"
START_TIMEOUT_S = 120.0

_ZOOKEEPER_PORT, _BOOKIE_PORT, _REST_PORT = 2181, 4181, 10080  # in a namespace of their own

USER, PASSWORD = "admin", "1111_aaaa"

# Maven selects the nearest version of protobuf, Hadoop's, with which the controller never starts. Gradle, with which
# Pravega is built, selects the newest.
_POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>twopc</groupId><artifactId>pravega</artifactId><version>1</version><dependencies>
<dependency><groupId>com.google.protobuf</groupId><artifactId>protobuf-java</artifactId>
<version>3.21.7</version></dependency>
<dependency><groupId>io.pravega</groupId><artifactId>pravega-standalone</artifactId>
<version>{VERSION}</version></dependency>
</dependencies></project>
"""

_IN_THE_WAY = ("slf4j-reload4j-*", "jersey-*-1.19*", "jaxb-impl-2.2*", "bcprov-ext-*", "bc-fips-*")
"""Jars that conflict with others, depending on their order: a second logger, and Hadoop's web server."""

_LOGGING = """
<configuration><appender name="FILE" class="ch.qos.logback.core.FileAppender"><file>{log}</file>
<encoder><pattern>%d %-5level %logger{{20}} %msg%n%ex{{5}}</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="FILE"/></root></configuration>
"""


@functools.cache
def why_not() -> str | None:
    """Return why the server can't run here and what is missing; None if it can."""
    for program, package in (("java", "a JRE of version 11 or 17"), ("mvn", "Maven")):
        if not shutil.which(program):
            return f"Pravega's server needs the command {program!r}: install {package}"
    return networks.why_not()


def jars() -> Path:
    """Return a folder with the server's jars and their dependencies, downloaded by Maven on first use (250 MB)."""

    def fill(folder: Path) -> None:
        (folder / "pom.xml").write_text(_POM)
        copy = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
        copy += [f"-DoutputDirectory={folder}", f"-Dmaven.repo.local={folder / 'm2'}"]
        copied = subprocess.run(copy, capture_output=True, text=True, timeout=900, check=False)
        assert copied.returncode == 0, copied.stdout + copied.stderr
        shutil.rmtree(folder / "m2")
        for name in _IN_THE_WAY:
            for jar in folder.glob(name):
                jar.unlink()

    return publish(cache_folder() / "jars" / f"pravega-standalone-{VERSION}", fill)


class Relay:
    """Listens on loopback, and forwards each connection to the same port on another host."""

    def __init__(self, host: Host) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=[host], daemon=True).start()

    def _accept(self, host: Host) -> None:
        host.enter()  # new sockets of this thread are on the host; the listener stays outside
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            self._ends |= {near, far}
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=[source, sink], daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        _close(source, sink)
        self._ends -= {source, sink}

    def cut(self) -> None:
        """Break all connections."""
        _close(*self._ends.copy())

    def close(self) -> None:
        _close(self._listener)
        self.cut()


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class _Component(ServerProcess):
    """A process of a cluster.

    Args:
        name: its name, for its log.
        main: its main class.
        settings: its Java properties.
        port: the port on which it listens once started.
    """

    def __init__(self, name: str, main: str, settings: Mapping[str, str | int], port: int, host: Host, folder: Path):
        self._name, self._main, self._port, self._host, self._folder = name, main, port, host, folder
        self._settings = settings
        self.log = folder / f"{name}.log"

    def start(self) -> None:
        logging = self._folder / f"{self._name}.xml"
        logging.write_text(_LOGGING.format(log=self.log))
        (self._folder / "config.properties").touch()
        given = {
            "logback.configurationFile": f"file:{logging}",
            "pravega.configurationFile": self._folder / "config.properties",
            "java.io.tmpdir": self._folder,
            "com.sun.xml.bind.v2.bytecode.ClassTailor.noOptimize": "true",  # that optimization needs Java 8
            **self._settings,
        }
        command = [
            str(shutil.which("java")),
            "-Xmx1g",
            "-XX:MaxDirectMemorySize=512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ]
        command += [
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            *(f"-D{name}={each}" for name, each in given.items()),
        ]
        command += ["-cp", f"{jars()}/*", self._main]
        with self._host.entered():
            self._start(f"Pravega's {self._name}", bound(*command), self.log, START_TIMEOUT_S, cwd=self._folder)

    def _answers(self) -> bool:
        with self._host.entered(), contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True
        return False


class PravegaServer(Startable):
    """A cluster of one controller, one segment store, and one process with ZooKeeper and a bookie.

    ``kill`` kills the controller and the segment store. Data and addresses survive a restart.

    Args:
        controller: properties of the controller, such as ``controller.transaction.lease.count.max``.
        store: properties of the segment store.
        certificate: the certificate that clients must trust; None without TLS.
        has_users: whether clients must authenticate; ``USER`` with ``PASSWORD`` may do anything.
    """

    def __init__(
        self,
        controller: Mapping[str, str | int] | None = None,
        store: Mapping[str, str | int] | None = None,
        certificate: Path | None = None,
        has_users: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="twopc-pravega-"))
        self._host = Host("127.0.0.1")
        self.to_controller, self.to_store = Relay(self._host), Relay(self._host)
        self._certificate, self._has_users = certificate, has_users
        ledgers = "/pravega/pravega-cluster/bookkeeper/ledgers"
        self._bookie = self._component(
            "bookie",
            "io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperServiceRunner",
            _ZOOKEEPER_PORT,
            basePort=_BOOKIE_PORT,
            bookieCount=1,
            zkPort=_ZOOKEEPER_PORT,
            zkLedgersPath=ledgers,
            startZk="true",
            ledgersDir=str(self.folder),
        )
        zookeeper = f"127.0.0.1:{_ZOOKEEPER_PORT}"
        self.store = self._component(
            "store",
            "io.pravega.segmentstore.server.host.ServiceStarter",
            self.to_store.port,
            **{
                "pravegaservice.cache.size.max": 64 * 1024 * 1024,
                "pravegaservice.container.count": 2,
                "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
                "pravegaservice.storage.impl.name": "FILESYSTEM",
                "filesystem.root": str(self.folder / "tier2"),
                "pravegaservice.zk.connect.uri": zookeeper,
                "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
                "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
                "pravegaservice.service.listener.port": self.to_store.port,
                "pravegaservice.service.published.port": self.to_store.port,
                "pravegaservice.admin.gateway.enable": "false",
                "pravegaservice.rest.listener.enable": "false",
                "bookkeeper.zk.connect.uri": zookeeper,
                "bookkeeper.ledger.path": ledgers,
                "bookkeeper.ensemble.size": 1,
                "bookkeeper.write.quorum.size": 1,
                "bookkeeper.ack.quorum.size": 1,
                "autoScale.controller.connect.uri": self.uri,
                **(store or {}),
            },
        )
        self.controller = self._component(
            "controller",
            "io.pravega.controller.server.Main",
            self.to_controller.port,
            **{
                "controller.container.count": 2,
                "controller.zk.connect.uri": zookeeper,
                "controller.service.rpc.listener.port": self.to_controller.port,
                "controller.service.rpc.published.host.nameOrIp": "127.0.0.1",
                "controller.service.rest.listener.port": _REST_PORT,
                **(controller or {}),
            },
        )
        (self.folder / "tier2").mkdir()

    def _component(self, name: str, main: str, port: int, **settings: str | int) -> _Component:
        return _Component(name, main, settings, port, self._host, self.folder)

    @property
    def uri(self) -> str:
        return f"{'tls' if self._certificate else 'tcp'}://127.0.0.1:{self.to_controller.port}"

    @property
    def options(self) -> dict[str, str]:
        """The options of a sink with all permissions, without its stream."""
        options = {"controller": self.uri}
        if self._has_users:
            options |= {"username": USER, "password": PASSWORD}
        if self._certificate:
            options |= {"ca_file": str(self._certificate)}
        return options

    @functools.cached_property
    def admin(self) -> Admin:
        return Admin(PravegaOptions.parse({**self.options, "stream": "any/any"}).server)

    def start(self) -> None:
        """Start missing processes, and return when the cluster responds."""
        jars()
        for component in (self._bookie, self.store, self.controller):
            if not component.is_running:
                component.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.admin.create_scope("started")
                self.admin.segments(Stream("_system", "_requeststream"))
                return
            except (grpc.RpcError, AssertionError):  # a controller that has just started may return failures
                assert time.monotonic() < deadline, f"Pravega did not answer:\n{self.controller.log.read_text()}"
                time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL to the controller and the segment store."""
        self.controller.kill()
        self.store.kill()

    def pause(self) -> None:
        """Suspend the controller and the segment store. They keep their connections."""
        stand_still(self.controller.pid, self.store.pid)

    def resume(self) -> None:
        go_on(self.controller.pid, self.store.pid)

    def close(self) -> None:
        """End the cluster and remove its data."""
        self.kill()
        self._bookie.kill()
        for relay in (self.to_controller, self.to_store):
            relay.close()
        self._host.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_FOR_ADMINS = """
message ScopeInfo { string scope = 1; }
message KeyRangeEntry { double start = 1; double end = 2; }
message ScaleRequest { StreamInfo streamInfo = 1; repeated int64 sealedSegments = 2; repeated KeyRangeEntry \
newKeyRanges = 3; int64 scaleTimestamp = 4; }
message GetEpochSegmentsRequest { StreamInfo streamInfo = 1; int32 epoch = 2; }
message ScaleResponse { int32 status = 1; repeated SegmentRange segments = 2; int32 epoch = 3; }
"""


class Admin(Controller):
    """Creates scopes and streams, and scales and reads streams."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._messages = load(PROTO + _FOR_ADMINS)

    def _ask(self, method: str, request: Any, answer: str = "Status") -> Any:
        ask = self._channel.unary_unary(
            f"/io.pravega.controller.stream.api.grpc.v1.ControllerService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages[answer].FromString,
        )
        return ask(request, timeout=30, metadata=self._metadata)

    def create_scope(self, scope: str) -> None:
        status = self._ask("createScope", self._messages["ScopeInfo"](scope=scope)).status
        assert status in (0, 2), f"no scope: {status}"

    def create_stream(self, stream: Stream, segments: int = 2) -> None:
        policy = self._messages["ScalingPolicy"](minNumSegments=segments)
        info = self._messages["StreamInfo"](scope=stream.scope, stream=stream.name)
        config = self._messages["StreamConfig"](streamInfo=info, scalingPolicy=policy)
        status = self._ask("createStream", config).status
        assert status == 0, f"no stream: {status}"

    def delete_stream(self, stream: Stream) -> None:
        info = self._messages["StreamInfo"](scope=stream.scope, stream=stream.name)
        for method in ("sealStream", "deleteStream"):
            status = self._ask(method, info).status
            assert status == 0, f"{method}: {status}"

    def scale(self, stream: Stream, segments: int) -> None:
        """Replace all segments of a stream with new ones that split the keys evenly. Wait for completion."""
        ends = [(n / segments, (n + 1) / segments) for n in range(segments)]
        request = self._messages["ScaleRequest"](
            streamInfo=self._messages["StreamInfo"](scope=stream.scope, stream=stream.name),
            sealedSegments=[segment.id for segment in self.segments(stream)],
            newKeyRanges=[self._messages["KeyRangeEntry"](start=start, end=end) for start, end in ends],
            scaleTimestamp=int(time.time() * 1000),
        )
        assert self._ask("scale", request, "ScaleResponse").status == 0
        until(lambda: len(self.segments(stream)) == segments, 30, "the stream is scaled")

    def events(self, stream: Stream) -> dict[int, list[bytes]]:
        """Return the events of all current and former segments of a stream, by segment id."""
        epochs = {segment.id >> 32 for segment in self.segments(stream)}
        token, found = self.token(stream), {}
        for epoch in range(max(epochs) + 1):
            request = self._messages["GetEpochSegmentsRequest"](
                streamInfo=self._messages["StreamInfo"](scope=stream.scope, stream=stream.name), epoch=epoch
            )
            for each in self._ask("getEpochSegments", request, "SegmentRanges").segmentRanges:
                id = each.segmentId.segmentId
                if id not in found:
                    data = self._read(stream, id, token)
                    found[id] = [event for event, _ in unframed(data)]
        return found

    def _read(self, stream: Stream, segment: int, token: str) -> bytes:
        place = Place(self, stream, segment)
        connection, bounds = place.reach(lambda each: each.bounds(place.name, token))
        try:
            return connection.read(place.name, token, *bounds)
        finally:
            connection.close()


def run_java(server: PravegaServer, name: str, source: str, *arguments: str) -> str:
    """Run a single-class Java program with Pravega's own client against the cluster. Return its output."""
    file = server.folder / f"{name}.java"
    file.write_text(source)
    command = [str(shutil.which("java")), "-Dfile.encoding=UTF-8", "-Xmx512m", "-cp", f"{jars()}/*"]
    silent = f"-Dlogback.configurationFile=file:{server.folder / 'controller.xml'}"
    ended = subprocess.run(
        [*command, silent, str(file), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
