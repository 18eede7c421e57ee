"""Hive Metastore as a catalog. A commit is ``alter_table`` under an exclusive lock on the table. The metastore itself
compares nothing, so a change that may still arrive must keep its lock.

The process that took a lock drops it. If the response to a change was lost, the process drops the lock when it sees the
change, or after ``LATE_S``. If any other response was lost, it drops the lock at once over a new connection.

A killed process leaves its lock behind. Another process on the same machine can see that the holder has ended, and
drops the lock ``LATE_S`` after that. On any other machine, the holder could be dead or suspended in the middle of a
change: the lock stays until the metastore expires it, and the next commit waits and names it.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import getpass
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hive_metastore import ttypes
from hive_metastore.ThriftHiveMetastore import Client
from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.hive import HIVE_KERBEROS_AUTH, HiveCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchTableError,
    RESTError,
    WaitingForLockException,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from twopc.errors import ConfigurationError
from twopc.failures import mapped
from twopc_iceberg.kept_metadata import KeepsMetadata, ProbedCatalog
from twopc_iceberg.options import OF_CATALOG
from twopc_iceberg.pyiceberg_internals import connect_hive, hive_columns

if TYPE_CHECKING:
    from twopc_iceberg.options import IcebergOptions

logger = logging.getLogger(__name__)

LATE_S = 900.0
"""How long after a lost response a change may still take effect. Linux keeps sending pending data for about 100 s after
a connection is closed, and a metastore works on a request for up to 600 s (its setting
``hive.metastore.client.socket.timeout``) without noticing that its client is gone."""

_LONGEST_NAME, _LONGEST_VALUE = 256, 4000
"""The maximum number of characters in the name and in the value of a table parameter, in every version of the
metastore. Longer parameters are omitted. Iceberg's metadata contains all of them."""

_PROC = Path("/proc")

_AGENT = re.compile(r"twopc [0-9a-f]{32} (?P<machine>\S+) (?P<pid>\d+) (?P<started>\d+)")

_ADDRESS = re.compile(r"thrift://([^@\s,/:]+):(\d+)/?")


@dataclass(frozen=True, slots=True)
class _Left:
    """A lock that this process may have left behind.

    Attributes:
        table: the locked database and table.
        is_known: whether the metastore has returned the lock's id. If not, the lock may still be created.
        replaces: the metadata location that an unanswered change replaces; None if there is no such change.
        since_s: when the response was lost, by the monotonic clock.
    """

    table: tuple[str, str]
    is_known: bool
    replaces: str | None
    since_s: float


_left: dict[tuple[tuple[str, int], str], _Left] = {}
"""Abandoned locks by the metastore's address and the lock's ``agentInfo``. Kept per process, since a catalog reconnects
after an error."""

_ended: dict[str, float] = {}
"""A lock's ``agentInfo`` → when this process saw that its holder had ended, by the monotonic clock. Lock ids would not
do: another metastore may use the same ones."""


def connected(options: IcebergOptions, properties: dict[str, Any], timeout_s: tuple[float, float]) -> KeptHiveCatalog:
    """Create the catalog, without sending a request.

    Args:
        options: the sink's options.
        properties: the catalog's properties.
        timeout_s: how long the metastore may take to accept a connection, and to respond.

    Raises:
        ConfigurationError: the URI does not name a metastore, or a property is not supported.
    """
    address = _ADDRESS.fullmatch(str(properties["uri"]))
    if address is None:
        raise ConfigurationError(
            f"the Hive catalog {options.catalog!r} must have the URI of one metastore, such as thrift://hms.example:9083."
        )
    if str(properties.get(HIVE_KERBEROS_AUTH, "false")).lower() != "false":
        raise ConfigurationError(f"the sink does not support '{OF_CATALOG}{HIVE_KERBEROS_AUTH}'.")
    catalog = KeptHiveCatalog(options.catalog, **properties)
    ugi = str(properties["ugi"]).split(":") if "ugi" in properties else None
    catalog.connections = _Connections((address[1], int(address[2])), ugi, timeout_s)
    connect_hive(catalog, catalog.connections)
    return catalog


class KeptHiveCatalog(KeepsMetadata, HiveCatalog, ProbedCatalog):
    """Hive Metastore 2 or 3, with its errors mapped to those that ``outcomes`` classifies."""

    connections: _Connections
    _agent = ""

    def answers(self) -> contextlib.AbstractContextManager[None]:
        return mapped(TException, _meaning, hides_cause=True)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        database, name = self.identifier_to_database_and_table(table.name())
        with self.answers():
            self._drop_left(database, name)
            with self._locking(database, name):
                return super().commit_table(table, requirements, updates)

    def probe(self, table: Table) -> None:
        """Request two locks on the table at once: the second must wait."""
        database, name = self.identifier_to_database_and_table(table.name())
        try:
            hive_columns(table.schema(), table.location())
        except KeyError as unknown:
            raise ConfigurationError(f"table {database}.{name}: Hive has no type for {unknown}") from None
        with self.answers(), self._locking(database, name), self.connections as client:
            locks = [client.lock(self._create_lock_request(database, name)) for _ in range(2)]
            for lock in locks:
                client.unlock(ttypes.UnlockRequest(lockid=lock.lockid))
        if locks[1].state != ttypes.LockState.ACQUIRED:
            raise CommitFailedException("a second lock waits")

    @contextlib.contextmanager
    def _locking(self, *table: str) -> Iterator[None]:
        """Name this process in its locks, and drop the locks that a broken connection leaves behind."""
        self._agent = f"twopc {uuid.uuid4().hex} {_process()}"
        try:
            yield
        except (TTransportException, TProtocolException):
            with contextlib.suppress(Exception):  # the next commit tries again
                self._drop_left(*table)
            raise

    def _drop_left(self, *table: str) -> None:
        """Drop this process's abandoned locks on the table, once their changes can no longer arrive."""
        here = self.connections.address
        left = {agent: each for (where, agent), each in [*_left.items()] if (where, each.table) == (here, table)}
        if not left:
            return
        with self.connections as client:
            now = client.get_table(*table).parameters.get(METADATA_LOCATION)
            locks = client.show_locks(ttypes.ShowLocksRequest(*table)).locks
            for agent, of_us in left.items():
                ids = [each.lockid for each in locks if each.agentInfo == agent]
                left_s = LATE_S - (time.monotonic() - of_us.since_s)
                if of_us.replaces == now and left_s > 0:
                    for lock_id in ids:  # a heartbeat, without which the lock would expire
                        client.check_lock(ttypes.CheckLockRequest(lockid=lock_id))
                    raise TimeoutError(
                        f"the answer to a change of {'.'.join(table)} was lost, and it may still be made. This process"
                        f" drops its lock {ids} in {left_s:.0f} s"
                    )
                for lock_id in ids:
                    client.unlock(ttypes.UnlockRequest(lockid=lock_id))
                if ids or of_us.is_known or left_s <= 0:
                    _left.pop((here, agent), None)

    def _create_lock_request(self, database_name: str, table_name: str) -> ttypes.LockRequest:
        component = ttypes.LockComponent(
            level=ttypes.LockLevel.TABLE,
            type=ttypes.LockType.EXCLUSIVE,
            dbname=database_name,
            tablename=table_name,
            isTransactional=True,
        )
        return ttypes.LockRequest([component], user=_user(), hostname=socket.gethostname(), agentInfo=self._agent)

    def _wait_for_lock(
        self, database_name: str, table_name: str, lockid: int, open_client: Client
    ) -> ttypes.LockResponse:
        try:
            return super()._wait_for_lock(database_name, table_name, lockid, open_client)
        except WaitingForLockException:
            locks = open_client.show_locks(ttypes.ShowLocksRequest(database_name, table_name)).locks
        first = min((each for each in locks if each.lockid != lockid), key=lambda each: each.lockid, default=None)
        if first is None:
            raise CommitFailedException(f"{database_name}.{table_name} was locked until now")
        now_ms = next((each.lastheartbeat for each in locks if each.lockid == lockid), 0)  # by the metastore's clock
        quiet_s = (now_ms - (first.lastheartbeat or first.acquiredat or 0)) / 1000
        held = (
            f"{first.user}@{first.hostname} ({(first.agentInfo or '')[:50]}) holds lock {first.lockid} of"
            f" {database_name}.{table_name}, without a sign of life for {quiet_s:.0f} s"
        )
        if not _has_ended(first.hostname, first.agentInfo):
            raise CommitFailedException(
                f"{held}. If that process is dead, drop the lock: remove the row of HIVE_LOCKS in the metastore's"
                f" database whose HL_LOCK_EXT_ID is {first.lockid}"
            )
        left_s = LATE_S - (time.monotonic() - _ended.setdefault(first.agentInfo, time.monotonic()))
        if left_s > 0:
            raise CommitFailedException(f"{held}. That process has ended. This one drops the lock in {left_s:.0f} s")
        logger.warning("%s. That process has ended: its lock is dropped.", held)
        open_client.unlock(ttypes.UnlockRequest(lockid=first.lockid))
        _ended.pop(first.agentInfo, None)
        return super()._wait_for_lock(database_name, table_name, lockid, open_client)

    def _convert_hive_into_iceberg(self, table: Any) -> Table:
        location = table.parameters.get(METADATA_LOCATION)
        if location is None:
            raise NoSuchIcebergTableError(f"{table.dbName}.{table.tableName} is no Iceberg table")
        load = functools.partial(super()._convert_hive_into_iceberg, table)
        return self._kept_table((table.dbName, table.tableName), location, load)


class _Calls(Client):  # type: ignore[misc]  # it has no types
    """A connection to the metastore, with the state of its lock.

    Attributes:
        agent: the ``agentInfo`` of the requested lock.
        lockid: the lock's id in the metastore.
        left: the lock that this connection would leave behind; None once the metastore has confirmed that the lock is
            dropped.
        before: the table as last read from the metastore.
    """

    agent = ""
    lockid = 0
    left: _Left | None = None
    before: Any = None

    def lock(self, rqst: ttypes.LockRequest) -> ttypes.LockResponse:
        [component] = rqst.component
        self.agent, self.left = rqst.agentInfo, _Left((component.dbname, component.tablename), False, None, 0.0)
        answer = super().lock(rqst)
        self.lockid, self.left = answer.lockid, replace(self.left, is_known=True)
        return answer

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        table = super().get_table(dbname, tbl_name)
        self.before = copy.copy(table)
        return table

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        replaces = new_tbl.parameters[PREVIOUS_METADATA_LOCATION]
        new_tbl.parameters = _short(new_tbl.parameters, self.before.parameters)
        new_tbl.sd = _changed(self.before.sd, new_tbl.sd)
        # Metastores with HIVE-26882 check this.
        expected = {"expected_parameter_key": METADATA_LOCATION, "expected_parameter_value": replaces}
        environment_context.properties.update(expected)
        # A process that was suspended may have lost its lock. This call is also a heartbeat.
        if super().check_lock(ttypes.CheckLockRequest(lockid=self.lockid)).state != ttypes.LockState.ACQUIRED:
            raise CommitFailedException(f"{dbname}.{tbl_name}: the lock was lost before the change")
        locked, self.left = self.left, _Left((dbname, tbl_name), True, replaces, 0.0)
        try:
            super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
        except (TTransportException, TProtocolException):  # the change may still be made, so the lock stays
            raise
        except TException:
            self.left = locked
            raise
        self.left = locked

    def unlock(self, rqst: ttypes.UnlockRequest) -> None:
        if self.left is None or self.left.replaces is None:
            super().unlock(rqst)
            if rqst.lockid == self.lockid:
                self.left = None


class _Socket(TSocket):  # type: ignore[misc]  # it has no types
    """A socket that closes when a response is late. Otherwise the next request would read that response as its own."""

    def read(self, sz: int) -> bytes:
        try:
            found: bytes = super().read(sz)
        except TTransportException:
            self.close()
            raise
        return found


class _Connections:
    """Opens connections to the metastore, with timeouts. Each ``with`` block has its own connection."""

    def __init__(self, address: tuple[str, int], ugi: list[str] | None, timeout_s: tuple[float, float]) -> None:
        self.address, self._ugi, self._timeout_s = address, ugi, timeout_s

    def __enter__(self) -> Client:
        connect_s, answer_s = self._timeout_s
        self._socket = _Socket(*self.address)
        self._socket.setTimeout(connect_s * 1000)
        self._socket.open()
        self._socket.setTimeout(answer_s * 1000)
        self._calls = _Calls(TBinaryProtocol(TBufferedTransport(self._socket)))
        if self._ugi:
            self._calls.set_ugi(*self._ugi)
        return self._calls

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self._calls.left is not None:
            _left[self.address, self._calls.agent] = replace(self._calls.left, since_s=time.monotonic())


def _short(parameters: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    """Return the parameters that are short enough for every metastore, and the parameters that this metastore already
    stores."""
    return {
        name: value
        for name, value in parameters.items()
        if (len(name) <= _LONGEST_NAME and len(value) <= _LONGEST_VALUE) or known.get(name) == value
    }


def _changed(known: Any, wanted: Any) -> Any:
    """Return the known storage descriptor with the wanted columns and location. Formats, the SerDe with its properties,
    and column comments that Iceberg lacks belong to other tools and are kept."""
    comments = {column.name.lower(): column.comment for column in known.cols or ()}
    for column in wanted.cols:
        column.comment = column.comment or comments.get(column.name.lower())
    known.cols, known.location = wanted.cols, wanted.location
    return known


def _process() -> str:
    """Return the machine, the process id and the start time, which together identify this process; "" if Linux does not
    show them. The machine is identified by its boot id, its MAC address (a clone of a running machine may have another
    one) and its PID namespace."""
    try:
        if (_PROC / "self").readlink().name != str(os.getpid()):
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        node = uuid.getnode()
        mac = 0 if node >> 40 & 1 else node  # without network hardware, Python draws a number with this bit set
        machine = f"{boot}/{mac:x}/{(_PROC / 'self/ns/pid').stat().st_ino}"
        return f"{machine} {os.getpid()} {_started(os.getpid())}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]


def _has_ended(hostname: str, agent: str | None) -> bool:
    """Return whether the process that took a lock is known to have ended. This is only known for twopc processes on
    this machine."""
    found = _AGENT.fullmatch(agent or "")
    if found is None or hostname != socket.gethostname() or not _process().startswith(f"{found['machine']} "):
        return False
    try:
        os.kill(int(found["pid"]), 0)
        return _started(int(found["pid"])) != found["started"]
    except ProcessLookupError:
        return True
    except OSError:
        return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())


def _meaning(error: Any) -> Exception:
    """Map an error of the metastore to an error that ``outcomes`` classifies. An unknown error becomes a RESTError."""
    text = getattr(error, "message", error)
    match error:
        case TTransportException() | TProtocolException():
            return TimeoutError(f"the metastore: {text}")
        case ttypes.NoSuchObjectException():
            return NoSuchTableError(text)
        case ttypes.NoSuchLockException() | ttypes.TxnAbortedException():
            return CommitFailedException(f"the lock was lost: {text}")
        case TApplicationException(type=TApplicationException.INTERNAL_ERROR):  # for example, its database is down
            return OSError(errno.EBUSY, f"the metastore: {text}")
        case TApplicationException():
            return RESTError(f"the metastore is none of version 2 or 3: {text}")
        case _:
            return RESTError(f"{type(error).__name__}: {text}")
