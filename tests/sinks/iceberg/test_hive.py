"""Hive Metastore as a catalog: a real one, whose commits exclude each other by locks alone."""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("thrift", reason="the extra 'hive' of twopc-iceberg is not installed")

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import CheckLockRequest, LockResponse, LockState, ShowLocksRequest, UnlockRequest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from tests.sinks.iceberg.conftest import Place
from tests.sinks.iceberg.test_contract import SCHEMA, SPEC
from tests.sinks.iceberg.test_contract import TestAppend as Append
from tests.support import hive_metastore
from tests.support.between import Between, once
from tests.support.hive_metastore import HiveMetastore
from tests.support.loop import Job
from tests.support.pages import ROOT
from tests.support.raising import raising
from twopc import Committable, Round
from twopc.errors import ConfigurationError, Retriable
from twopc.retry import until_answered
from twopc_iceberg import IcebergSink, hive
from twopc_iceberg.outcomes import CatalogAnswer, answer

ALTER = "alter_table_with_environment_context"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    if why := hive_metastore.why_not():
        pytest.skip(why)
    with HiveMetastore(tmp_path_factory.mktemp("hive") / "metastore") as server:
        yield server


class OnHive(Place):
    """A table beside the folder of its database, which the metastore names without slashes."""

    def create(self, *arguments: Any, **named: Any) -> Table:
        return super().create(*arguments, **{"location": f"{self.properties['warehouse']}/{uuid.uuid4().hex}", **named})


@pytest.fixture
def table(server: HiveMetastore, tmp_path: Path) -> Iterator[Place]:
    properties = {"uri": server.uri, "warehouse": f"file://{tmp_path}/warehouse", "lock-check-retries": "1"}
    place = OnHive(properties, name=f"db.orders_{uuid.uuid4().hex}", deletes="position")
    place.create()
    yield place
    assert left(server, place) == []


def locks(server: HiveMetastore, place: Place) -> list[Any]:
    with server.connections() as client:
        return list(client.show_locks(ShowLocksRequest(*place.name.split("."))).locks)


def left(server: HiveMetastore, place: Place) -> list[int]:
    return [each.lockid for each in locks(server, place)]


class PromptSink(IcebergSink):
    """Drops the lock of a process that was killed during a commit at once: no change of it is still on its way."""

    def open(self) -> None:
        hive.LATE_S = 0.0
        super().open()


@pytest.mark.long
class TestOnHive(Append):
    @pytest.fixture(autouse=True)
    def _place(self, table: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = table
        table.create(SCHEMA, SPEC)
        monkeypatch.setattr(hive, "LATE_S", 0.0)  # restored after what ``PromptSink`` sets

    def make_sink(self) -> IcebergSink:
        return PromptSink(self.place.options)


@pytest.mark.long
@pytest.mark.parametrize("log_id", ["log", "log2"])
def test_two_committers_at_once_lose_and_double_nothing(log_id: str, table: Place) -> None:
    one, other = table.sink(), table.sink(log_id)
    theirs = table.decided(["b"], sink=other)
    ours = theirs if log_id == "log" else table.decided(["a"])
    Between(before=once(lambda: other.commit_batch(0, theirs))).stand(one)
    one.commit_batch(0, ours)
    one.commit_batch(1, table.decided(["c"], round=Round(1, 1)))
    assert table.values() == ([] if log_id == "log" else ["a"]) + ["b", "c"]


@pytest.mark.long
@pytest.mark.parametrize("version", ["2", "3"])
def test_records_replace_rows_by_a_key(version: str, table: Place) -> None:
    place = replace(table, version=version)
    place.create()
    for batch_id, values in enumerate((["a", "b"], ["b", "c"])):
        place.run(batch_id, values, sink=place.sink(upsert_by="value"))
    assert place.values() == ["a", "b", "c"]


def struck(monkeypatch: pytest.MonkeyPatch, part: str, after: bool) -> None:
    """Have one connection break before a request is sent, or when its answer arrives."""
    intact: Callable[..., Any] = getattr(hive._Calls, part)

    def broken(self: Any, *arguments: Any) -> None:
        monkeypatch.setattr(hive._Calls, part, intact)
        if after:
            intact(self, *arguments)
        if part != f"send_{ALTER}":  # as where no answer comes in time, and the connection stays
            self._iprot.trans.close()
        raise TTransportException(message="the connection broke")

    monkeypatch.setattr(hive._Calls, part, broken)


def silent(*_: Any) -> None:
    raise TTransportException(message="no answer in time")


def until_committed(sink: IcebergSink, batch_id: int, batch: list[Committable]) -> None:
    until_answered("the test", lambda: sink.commit_batch(batch_id, batch), patience_s=60)


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "after"),
    [
        ("send_lock", False),
        ("recv_lock", True),
        (f"send_{ALTER}", False),
        (f"recv_{ALTER}", True),
        ("recv_unlock", True),
    ],
)
def test_a_connection_that_breaks_amid_a_commit_neither_loses_nor_doubles_a_record_and_leaves_no_lock(
    part: str, after: bool, table: Place, server: HiveMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    sink.commit_batch(0, table.decided(["a"]))
    batch = table.decided(["b"], round=Round(1, 1))
    struck(monkeypatch, part, after)
    if part == f"send_{ALTER}":  # nobody knows that it was not sent
        for _ in range(2):
            with pytest.raises(Retriable):
                sink.commit_batch(1, batch)
        with pytest.raises(Retriable, match=r"was lost, and it may still be made\. This process drops its lock"):
            sink.commit_batch(1, batch)
        monkeypatch.setattr(hive, "LATE_S", 0.0)
    until_committed(sink, 1, batch)
    assert left(server, table) == []  # the process may end now
    monkeypatch.setattr(hive, "LATE_S", 0.0)  # a lock that was asked for may come until then
    sink.commit_batch(2, table.decided(["c"], round=Round(1, 2)))
    assert table.values() == ["a", "b", "c"]
    assert hive._left == {}


@pytest.mark.long
def test_a_lock_that_comes_after_its_answer_was_given_up_is_dropped(
    table: Place, server: HiveMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = table.sink(), table.decided(["a"])
    asked: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(hive._Calls, "send_lock", lambda _, request: asked.append(request))
        patched.setattr(hive._Calls, "recv_lock", silent)
        with pytest.raises(Retriable):
            sink.commit_batch(0, batch)
    with server.connections() as client:
        for request in asked:
            Client.lock(client, request)
    until_committed(sink, 0, batch)
    assert table.values() == ["a"]


AMID = {"lock": ["after"], ALTER: ["before", "after"], "unlock": ["before"]}

KILLED = """
import os, signal, sys
from tests.support import loop
from twopc_iceberg import hive

name, when, passes = sys.argv.pop(), sys.argv.pop(), int(sys.argv.pop())
intact = getattr(hive._Calls, name)

def struck(self, *arguments, **named):
    global passes
    passes -= 1
    if passes < 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = intact(self, *arguments, **named)
    if passes < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

setattr(hive._Calls, name, struck)
loop.main()
"""


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize(("name", "when"), [(name, when) for name, each in AMID.items() for when in each])
def test_the_lock_of_a_driver_that_was_killed_on_this_machine_is_dropped_in_time_and_nothing_is_lost(
    name: str, when: str, table: Place, server: HiveMetastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(str(tmp_path), {"orders": ("iceberg", table.options)}, batches=3)
    of_probe = 0 if name == ALTER else 2
    arguments = [sys.executable, "-c", KILLED, json.dumps(asdict(job)), str(of_probe + 2), when, name]
    killed = subprocess.run(arguments, cwd=ROOT, timeout=120, check=False)
    assert killed.returncode == -9
    [lock] = locks(server, table)
    assert lock.state == LockState.ACQUIRED
    batch, sink = table.decided(["mine"], sink=table.sink("mine")), table.sink("mine")
    for _ in range(2):
        told = rf"holds lock {lock.lockid} of {table.name}, .* has ended\. This one drops the lock in (900|8\d\d) s"
        with pytest.raises(Retriable, match=told):
            sink.commit_batch(0, batch)
        assert left(server, table) == [lock.lockid]
    monkeypatch.setattr(hive, "LATE_S", 0.0)
    sink.commit_batch(0, batch)
    job.run()
    assert table.values() == sorted([*job.all_values(), "mine"])


@pytest.mark.long
@pytest.mark.parametrize("agent", [None, f"twopc {32 * '0'} another/1 1 1"], ids=["of another tool", "elsewhere"])
def test_a_lock_whose_holder_may_live_is_named_to_the_operator_who_drops_it(
    agent: str | None, table: Place, server: HiveMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, sink = table.decided(["a"]), table.sink()
    monkeypatch.setattr(hive, "LATE_S", 0.0)
    request = hive.connected(table.unbound()._options, {**table.properties}, (10, 60))._create_lock_request(
        *table.name.split(".")
    )
    request.agentInfo = agent
    with server.connections() as client:
        held = client.lock(request)
        told = rf"holds lock {held.lockid} of .* remove the row of HIVE_LOCKS .* whose HL_LOCK_EXT_ID is {held.lockid}"
        with pytest.raises(Retriable, match=told):
            sink.commit_batch(0, batch)
        assert left(server, table) == [held.lockid]
        client.unlock(UnlockRequest(held.lockid))
    sink.commit_batch(0, batch)
    assert table.values() == ["a"]


@pytest.mark.long
@pytest.mark.crash
def test_a_metastore_that_was_killed_is_waited_for(table: Place, server: HiveMetastore) -> None:
    batch, sink = table.decided(["a"]), table.sink()
    server.kill()
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    server.start()
    sink.commit_batch(0, batch)
    assert table.values() == ["a"]


@pytest.mark.long
def test_what_hive_does_not_take_is_not_sent_or_refused_at_the_start(table: Place) -> None:
    table.create(properties={"long": "x" * 5000})
    table.sink().commit_batch(0, table.decided(["a"]))
    assert table.values() == ["a"]
    assert len(table.table().properties["long"]) == 5000


@pytest.mark.long
def test_what_other_tools_have_set_in_the_metastore_stays(table: Place, server: HiveMetastore) -> None:
    long = "x" * 5000
    sink, batch = table.sink(), table.decided(["a"])
    with server.connections() as client:
        theirs = client.get_table(*table.name.split("."))
        theirs.parameters["of another tool"] = "kept"
        theirs.sd.inputFormat = theirs.sd.serdeInfo.serializationLib = "org.example.Iceberg"
        theirs.sd.serdeInfo.parameters, theirs.sd.parameters = {"serde": "kept"}, {"storage": "kept"}
        theirs.sd.cols[0].comment = "of another tool"
        client.alter_table(*table.name.split("."), theirs)
        known = client.get_table(*table.name.split("."))
        sink.commit_batch(0, batch)
        found = client.get_table(*table.name.split("."))
    assert known.sd.serdeInfo.parameters == {"serde": "kept"}
    assert found.parameters["of another tool"] == "kept"
    assert found.parameters["metadata_location"] != known.parameters["metadata_location"]
    found.parameters = known.parameters
    assert found == known
    assert hive._short({"long": long, "kept": long}, {"kept": long}) == {"kept": long}
    assert table.values() == ["a"]


# Without a server. ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "thrift://one:9083,thrift://two:9083"},
        {"uri": "thrift://me:hunter2@host:9083"},
        {"uri": "thrift://host"},
    ],
)
def test_a_uri_of_no_single_metastore_is_refused_without_it(properties: dict[str, str], place: Place) -> None:
    with pytest.raises(ConfigurationError, match="must have the URI of one metastore") as refused:
        replace(place, properties={"type": "hive", **properties}).sink()
    assert "hunter2" not in str(refused.value)


def test_kerberos_is_refused_by_name(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"does not support 'catalog\.hive\.kerberos-authentication'"):
        replace(place, properties={"uri": "thrift://h:9083", "hive.kerberos-authentication": "true"}).sink()


def test_a_metastore_that_is_away_is_waited_for(place: Place) -> None:
    sink = replace(place, properties={"uri": "thrift://127.0.0.1:1"}).bound()
    with pytest.raises(Retriable, match="no answer"):
        sink.open()


@pytest.mark.parametrize(
    ("raised", "means"),
    [
        (TTransportException(message="m"), CatalogAnswer.REPEAT),
        (TApplicationException(message="Invalid method name"), CatalogAnswer.UNKNOWN),
        (TException("m"), CatalogAnswer.UNKNOWN),
    ],
    ids=str,
)
def test_an_error_of_the_metastore_is_temporary_only_without_an_answer(
    raised: TException, means: CatalogAnswer
) -> None:
    assert answer(hive._meaning(raised)) is means


def test_an_answer_that_does_not_come_in_time_is_not_taken_for_that_of_the_next_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = hive._Connections(server.getsockname(), None, (10, 0.05))
        with silent as client, server.accept()[0] as accepted:
            with pytest.raises(TTransportException):
                client.get_table("db", "t")
            with pytest.raises(TTransportException):
                client.unlock(UnlockRequest(1))
            while sent := accepted.recv(1 << 16):
                assert b"unlock" not in sent


def test_a_process_is_known_to_have_ended_only_on_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, pid, started = hive._process().split()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here, id_ = socket.gethostname(), 32 * "0"
    assert not hive._has_ended(here, f"twopc {id_} {machine} {pid} {started}")
    assert hive._has_ended(here, f"twopc {id_} {machine} {pid} {int(started) - 1}")
    assert hive._has_ended(here, f"twopc {id_} {machine} {gone.pid} {started}")
    assert not hive._has_ended("elsewhere", f"twopc {id_} {machine} {gone.pid} {started}")
    assert not hive._has_ended(here, f"twopc {id_} {machine}0 {gone.pid} {started}")
    assert not any(hive._has_ended(here, each) for each in (None, "", f"twopc {id_} ", f"another {id_} {gone.pid}"))
    monkeypatch.setattr(hive, "_PROC", Path("/nowhere"))
    assert hive._process() == ""
    assert not hive._has_ended(here, f"twopc {id_} {machine} {gone.pid} {started}")


class Told:
    """A metastore that knows some locks of ``db.t``, and which of them were dropped."""

    def __init__(self, *locks: tuple[int, str]) -> None:
        self.locks = [
            SimpleNamespace(lockid=id_, agentInfo=agent, user="u", hostname=socket.gethostname(), lastheartbeat=1)
            for id_, agent in locks
        ]
        self.dropped = list[int]()

    def show_locks(self, _: ShowLocksRequest) -> Any:
        return SimpleNamespace(locks=self.locks)

    def check_lock(self, _: CheckLockRequest) -> LockResponse:
        return LockResponse(2, LockState.ACQUIRED if self.dropped else LockState.WAITING)

    def unlock(self, request: UnlockRequest) -> None:
        self.dropped.append(request.lockid)


def catalog_at(place: Place, port: int) -> hive.KeptHiveCatalog:
    properties = {"uri": f"thrift://127.0.0.1:{port}", "lock-check-retries": "1", "lock-check-min-wait-time": "0"}
    return hive.connected(replace(place, properties=properties).unbound()._options, dict(properties), (1, 1))


def test_the_wait_for_an_ended_holder_begins_anew_in_another_metastore_that_gives_the_same_id(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hive, "_ended", {})
    machine, pid, started = hive._process().split()
    one, other = (Told((1, f"twopc {n * 32} {machine} {pid} {int(started) - 1}"), (2, "mine")) for n in "01")
    for metastore in (one, other):
        with pytest.raises(CommitFailedException, match=r"has ended\. This one drops the lock in 900 s"):
            catalog_at(place, 1)._wait_for_lock("db", "t", 2, metastore)
        hive._ended.update({agent: seen_s - hive.LATE_S for agent, seen_s in hive._ended.items()})
    catalog_at(place, 1)._wait_for_lock("db", "t", 2, one)
    assert (one.dropped, other.dropped) == ([1], [])


def test_a_lock_that_was_left_in_one_metastore_is_not_looked_for_in_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (("127.0.0.1", port) for port in (1, 2))
    ours = hive._Left(("db", "t"), True, None, 0.0)
    monkeypatch.setattr(hive, "_left", {(there, "a"): ours})
    catalog_at(place, 1)._drop_left("db", "t")  # makes no request
    with pytest.raises(TTransportException):
        catalog_at(place, 2)._drop_left("db", "t")
    monkeypatch.setattr(hive._Socket, "open", lambda _: None)
    with hive._Connections(here, None, (1, 1)) as client:
        client.agent, client.left = "b", ours
    assert [*hive._left] == [(there, "a"), (here, "b")]


def test_a_clone_of_a_machine_with_other_network_hardware_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, pid, started = hive._process().split()
    agent = f"twopc {32 * '0'} {machine} {pid} {int(started) - 1}"
    assert hive._has_ended(socket.gethostname(), agent)
    monkeypatch.setattr(uuid, "getnode", lambda: 0)
    assert not hive._has_ended(socket.gethostname(), agent)


def test_a_user_id_without_a_name_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", raising(KeyError("getpwuid(): uid not found")))
    assert hive._user() == str(os.getuid())
