"""The stores of the campaign, as a table: where a case keeps its files and its log, and how it is struck."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.campaigns.every_step import steps
from tests.campaigns.every_step.blows import Strike
from tests.campaigns.stores import calls, commits
from tests.campaigns.stores.go_servers import PROGRAMS, GoServer
from tests.campaigns.stores.postgres import StruckPostgres, on_postgres, watch_appends
from tests.support import azurite_server, gcs_server, hdfs_server
from tests.support.azurite_server import AzuriteServer
from tests.support.gcs_server import GcsServer
from tests.support.hdfs_server import HOME, HdfsServer
from tests.support.s3_server import S3Server

DISK, DISK_LOG = "{work}/data/orders", "{work}/log"


@dataclass(frozen=True)
class Kind:
    """A store. Either the writer is killed at every step (``calls``), or it and the server amid commits (``watch``).

    Attributes:
        data: the URL of the sink's folder. ``{work}`` is a local folder of the case; no other case has its ``{name}``.
        log: the URL of the commit log, in the same form.
        calls: turns this process's calls into steps.
        watch: reports each call of this process that commits something.
        server: returns the server of the store, given a new folder. It has ``storage_options``.
        obstacle: installs the server; returns why that is not possible here, and what to do about it.
        has_batch_logs: whether the sink can keep its logs of complete batches there.
    """

    data: str = DISK
    log: str = DISK_LOG
    calls: Callable[[steps.Steps], None] | None = None
    watch: Callable[[Strike], None] | None = None
    server: Callable[[Path], AbstractContextManager[Any]] | None = None
    obstacle: Callable[[], str | None] = lambda: None
    has_batch_logs: bool = True


@contextlib.contextmanager
def _kept_cluster(folder: Path) -> Iterator[HdfsServer]:
    """Lend the cluster of this process, which ends with it: to start one takes longer than a case."""
    cluster = _cluster(folder.parents[1])
    cluster.start()
    yield cluster


@cache
def _cluster(folder: Path) -> HdfsServer:
    return HdfsServer(folder / f"cluster-{os.getpid()}")


_S3 = ("s3://{name}/data/orders", "s3://{name}/log")
_AZURE = ("abfs://{name}/data/orders", "abfs://{name}/log")
_GCS = ("gs://{name}/data/orders", "gs://{name}/log")
_HDFS = (f"webhdfs://{HOME}/{{name}}/data/orders", f"webhdfs://{HOME}/{{name}}/log")
_POSTGRES = "postgresql:///postgres/{name}"

KINDS: Mapping[str, Kind] = {
    "local": Kind(calls=steps.on_disk),
    "s3": Kind(*_S3, calls=steps.on_s3, server=lambda folder: S3Server(folder / "s3.log")),
    "azure": Kind(*_AZURE, calls=steps.on_azure, server=AzuriteServer, obstacle=azurite_server.install),
    "gcs": Kind(*_GCS, calls=calls.on_gcs, server=GcsServer, obstacle=gcs_server.PROGRAM.install),
    "hdfs": Kind(*_HDFS, calls=calls.on_hdfs, server=HdfsServer, obstacle=hdfs_server.why_not),
    "rename": Kind("hdfs://{work}/data/orders", calls=calls.on_renaming, has_batch_logs=False),
    "memory": Kind("memory://{name}/data/orders", "memory://{name}/log", calls=calls.in_memory),
    "postgres-log": Kind(log=_POSTGRES, calls=on_postgres, server=lambda _: StruckPostgres()),
    **{
        name: Kind(*_S3, watch=commits.of_s3, server=partial(GoServer, program), obstacle=program.install)
        for name, program in PROGRAMS.items()
    },
    "azure-killed": Kind(
        *_AZURE, watch=commits.of_azure, server=partial(AzuriteServer, is_durable=True), obstacle=azurite_server.install
    ),
    "gcs-killed": Kind(*_GCS, watch=commits.of_gcs, server=GcsServer, obstacle=gcs_server.PROGRAM.install),
    "hdfs-killed": Kind(*_HDFS, watch=commits.of_hdfs, server=_kept_cluster, obstacle=hdfs_server.why_not),
    "postgres-log-killed": Kind(log=_POSTGRES, watch=watch_appends, server=lambda _: StruckPostgres()),
}
"""Name → store."""

AT_EVERY_STEP = tuple(name for name, kind in KINDS.items() if kind.calls)
"""The stores on which the writer is killed at every step."""
