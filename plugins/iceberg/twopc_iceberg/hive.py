"""Hive Metastore as a catalog. Its commit is ``alter_table`` under an exclusive lock of the table: the metastore itself
compares nothing, so whatever may still be on its way keeps its lock.

A lock is dropped by the process that took it, and only after the metastore has answered. If it gave no answer, the
process drops the lock when it sees the change, or ``LATE_S`` later. The lock of a process that was killed stays until
the metastore expires it. It is never broken here: nobody knows whether its holder is dead. The next commit waits, and
names the lock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import getpass
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    CheckLockRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockResponse,
    LockState,
    LockType,
    NoSuchLockException,
    ShowLocksRequest,
    TxnAbortedException,
    UnlockRequest,
)
from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.hive import HIVE_KERBEROS_AUTH, HiveCatalog, _construct_hive_storage_descriptor, _HiveClient
from pyiceberg.exceptions import CommitFailedException, NoSuchIcebergTableError, RESTError, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from twopc.errors import ConfigurationError
from twopc_iceberg.kept_metadata import KeepsMetadata, ProbedCatalog
from twopc_iceberg.options import OF_CATALOG

if TYPE_CHECKING:
    from pyiceberg.typedef import Identifier

    from twopc_iceberg.options import IcebergOptions

LATE_S = 660.0
"""How long after a lost answer a change may still be made: a metastore works for 600 s on a request (its setting
``hive.metastore.client.socket.timeout``), and does not notice that its client is gone."""

_LONGEST_NAME, _LONGEST_VALUE = 256, 4000
"""Characters of a table's parameter that every version of the metastore takes. Iceberg's metadata has them all."""

_ADDRESS = re.compile(r"thrift://([^@\s,/:]+):(\d+)/?")


@dataclass(frozen=True, slots=True)
class _Left:
    """A lock that this process may have left.

    Attributes:
        table: what is locked.
        replaces: the location of the metadata that an unanswered change replaces; None if there is no such change.
        since_s: when the answer was lost, by the monotonic clock.
    """

    table: tuple[str, str]
    replaces: str | None
    since_s: float


_left: dict[str, _Left] = {}
"""By the locks' ``agentInfo``. A catalog is connected to anew after an error, so the process keeps them."""


def connected(options: IcebergOptions, properties: dict[str, Any], timeout_s: tuple[float, float]) -> KeptHiveCatalog:
    """Return the catalog. Sends nothing.

    Args:
        options: the sink's.
        properties: the catalog's.
        timeout_s: how long a request may take to connect, and to be answered.

    Raises:
        ConfigurationError: the URI is not that of a metastore, or a property is not supported.
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
    catalog._client = _Connections((address[1], int(address[2])), ugi, timeout_s)  # noqa: SLF001
    return catalog


class KeptHiveCatalog(KeepsMetadata, HiveCatalog, ProbedCatalog):
    """Hive Metastore 2 or 3, whose errors mean what ``outcomes`` says."""

    _agent = ""

    def load_table(self, identifier: str | Identifier) -> Table:
        with _answers():
            return super().load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        database, name = self.identifier_to_database_and_table(table.name())
        with _answers():
            self._drop_left(database, name)
            self._agent = f"twopc {uuid.uuid4().hex}"
            return super().commit_table(table, requirements, updates)

    def probe(self, table: Table) -> None:
        """Ask for two locks at a time."""
        database, name = self.identifier_to_database_and_table(table.name())
        try:
            _construct_hive_storage_descriptor(table.schema(), table.location())
        except KeyError as unknown:
            raise ConfigurationError(f"table {database}.{name}: Hive has no type for {unknown}") from None
        with _answers(), self._client as client:
            self._agent = f"twopc {uuid.uuid4().hex}"
            locks = [client.lock(self._create_lock_request(database, name)) for _ in range(2)]
            for lock in locks:
                client.unlock(UnlockRequest(lockid=lock.lockid))
        if locks[1].state != LockState.ACQUIRED:
            raise CommitFailedException("a second lock waits")

    def _drop_left(self, *table: str) -> None:
        """Drop the locks of the table that this process has left, once their changes can't come any more."""
        left = {agent: each for agent, each in _left.items() if each.table == table}
        if not left:
            return
        with self._client as client:
            now = self._get_hive_table(client, *table).parameters.get(METADATA_LOCATION)
            for lock in client.show_locks(ShowLocksRequest(*table)).locks:
                if (of_us := left.get(lock.agentInfo)) is None:
                    continue
                if of_us.replaces == now and time.monotonic() - of_us.since_s < LATE_S:
                    client.check_lock(CheckLockRequest(lockid=lock.lockid))  # a lock without a sign of life expires
                    raise TimeoutError(
                        f"the answer to a change of {'.'.join(table)} was lost, and it may still be made. This process"
                        f" drops its lock {lock.lockid} {LATE_S:.0f} s after that"
                    )
                client.unlock(UnlockRequest(lockid=lock.lockid))
        for agent in left:
            _left.pop(agent, None)

    def _create_lock_request(self, database_name: str, table_name: str) -> LockRequest:
        component = LockComponent(
            level=LockLevel.TABLE,
            type=LockType.EXCLUSIVE,
            dbname=database_name,
            tablename=table_name,
            isTransactional=True,
        )
        return LockRequest([component], user=_user(), hostname=socket.gethostname(), agentInfo=self._agent)

    def _wait_for_lock(self, database_name: str, table_name: str, lockid: int, open_client: Client) -> LockResponse:
        try:
            return super()._wait_for_lock(database_name, table_name, lockid, open_client)
        except WaitingForLockException:
            locks = open_client.show_locks(ShowLocksRequest(database_name, table_name)).locks
        first = min((each for each in locks if each.lockid != lockid), key=lambda each: each.lockid, default=None)
        if first is None:
            raise CommitFailedException(f"{database_name}.{table_name} was locked until now")
        quiet_s = time.time() - (first.lastheartbeat or first.acquiredat or 0) / 1000
        raise CommitFailedException(
            f"{first.user}@{first.hostname} ({first.agentInfo}) holds lock {first.lockid} of"
            f" {database_name}.{table_name}, without a sign of life for {quiet_s:.0f} s. If that process is dead, drop"
            " the lock: remove the row of HIVE_LOCKS in the metastore's database whose HL_LOCK_EXT_ID is"
            f" {first.lockid}"
        )

    def _convert_hive_into_iceberg(self, table: Any) -> Table:
        location = table.parameters.get(METADATA_LOCATION)
        if location is None:
            raise NoSuchIcebergTableError(f"{table.dbName}.{table.tableName} is no Iceberg table")
        load = functools.partial(super()._convert_hive_into_iceberg, table)
        return self._kept_table((table.dbName, table.tableName), location, load)


class _Calls(Client):  # type: ignore[misc]  # it has no types
    """One connection to the metastore.

    Attributes:
        agent: that of the lock that was asked for.
        lockid: the metastore's id of it.
        left: the lock, until the metastore has answered that it is dropped.
    """

    agent = ""
    lockid = 0
    left: _Left | None = None

    def lock(self, rqst: LockRequest) -> LockResponse:
        [component] = rqst.component
        self.agent, self.left = rqst.agentInfo, _Left((component.dbname, component.tablename), None, 0.0)
        answer = super().lock(rqst)
        self.lockid = answer.lockid
        return answer

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        replaces = new_tbl.parameters[PREVIOUS_METADATA_LOCATION]
        new_tbl.parameters = {
            name: value
            for name, value in new_tbl.parameters.items()
            if len(name) <= _LONGEST_NAME and len(value) <= _LONGEST_VALUE
        }
        # Metastores with HIVE-26882 compare it.
        expected = {"expected_parameter_key": METADATA_LOCATION, "expected_parameter_value": replaces}
        environment_context.properties.update(expected)
        # A process that was suspended may have lost its lock. This also tells the metastore that it lives.
        if super().check_lock(CheckLockRequest(lockid=self.lockid)).state != LockState.ACQUIRED:
            raise CommitFailedException(f"{dbname}.{tbl_name}: the lock was lost before the change")
        locked, self.left = self.left, _Left((dbname, tbl_name), replaces, 0.0)
        try:
            super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
        except (TTransportException, TProtocolException):  # it may still be made, so the lock stays
            raise
        except TException:
            self.left = locked
            raise
        self.left = locked

    def unlock(self, rqst: UnlockRequest) -> None:
        if self.left is None or self.left.replaces is None:
            super().unlock(rqst)
            self.left = None


class _Connections(_HiveClient):
    """Connects to the metastore, for requests that end. Each use has a connection of its own."""

    def __init__(self, address: tuple[str, int], ugi: list[str] | None, timeout_s: tuple[float, float]) -> None:
        self._address, self._ugi, self._timeout_s = address, ugi, timeout_s

    def __enter__(self) -> Client:
        connect_s, answer_s = self._timeout_s
        self._socket = TSocket(*self._address)
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
            _left[self._calls.agent] = replace(self._calls.left, since_s=time.monotonic())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return str(os.getuid())


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """Raise the errors of the metastore as those that ``outcomes`` knows. Any but a lost connection is a RESTError."""
    try:
        yield
    except (TTransportException, TProtocolException) as error:
        raise TimeoutError(f"the metastore: {error.message}") from None
    except (NoSuchLockException, TxnAbortedException) as error:
        raise CommitFailedException(f"the lock was lost: {error.message}") from None
    except TApplicationException as error:
        if error.type == TApplicationException.INTERNAL_ERROR:  # such as its database, which is away
            raise OSError(errno.EBUSY, f"the metastore: {error.message}") from None
        raise RESTError(f"the metastore is none of version 2 or 3: {error.message}") from None
    except TException as error:
        raise RESTError(f"{type(error).__name__}: {getattr(error, 'message', error)}") from None
