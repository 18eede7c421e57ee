"""Hive Metastore as a catalog: a real one, whose commits exclude each other by locks alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thrift", reason="the extra 'hive' of twopc-iceberg is not installed")

from hive_metastore.ttypes import LockState, ShowLocksRequest, UnlockRequest
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
from twopc import Round
from twopc.errors import ConfigurationError, Retriable
from twopc_iceberg import hive
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


def drop(server: HiveMetastore, place: Place) -> None:
    """Do as the message says, by the metastore's own call."""
    with server.connections() as client:
        for lock_id in left(server, place):
            client.unlock(UnlockRequest(lock_id))


@pytest.mark.long
class TestOnHive(Append):
    @pytest.fixture(autouse=True)
    def _place(self, table: Place) -> None:
        self.place = table
        table.create(SCHEMA, SPEC)


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
        sink = place.sink(upsert_by="value")
        sink.commit_batch(batch_id, place.decided(values, round=Round(1, batch_id), sink=sink))
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
    while True:
        try:
            sink.commit_batch(1, batch)
            break
        except Retriable:
            continue
    sink.commit_batch(2, table.decided(["c"], round=Round(1, 2)))
    assert table.values() == ["a", "b", "c"]
    assert hive._left == {}


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
def test_the_lock_of_a_killed_driver_is_named_to_the_operator_who_drops_it_and_nothing_is_lost(
    name: str, when: str, table: Place, server: HiveMetastore, tmp_path: Path
) -> None:
    job = Job(str(tmp_path), {"orders": ("iceberg", table.options)}, batches=3)
    of_probe = 0 if name == ALTER else 2
    arguments = [sys.executable, "-c", KILLED, json.dumps(asdict(job)), str(of_probe + 2), when, name]
    killed = subprocess.run(arguments, cwd=ROOT, timeout=120, check=False)
    assert killed.returncode == -9
    [lock] = locks(server, table)
    assert lock.state == LockState.ACQUIRED
    batch, sink = table.decided(["mine"], sink=table.sink("mine")), table.sink("mine")
    with pytest.raises(Retriable, match=rf"holds lock {lock.lockid} of {table.name}, without a sign of life") as told:
        sink.commit_batch(0, batch)
    assert re.search(r"twopc [0-9a-f]{32}\)", str(told.value))
    assert left(server, table) == [lock.lockid]
    drop(server, table)
    sink.commit_batch(0, batch)
    job.run()
    assert table.values() == sorted([*job.all_values(), "mine"])


@pytest.mark.long
def test_a_lock_of_a_living_process_is_waited_for(table: Place, server: HiveMetastore) -> None:
    batch, sink, other = (
        table.decided(["a"]),
        table.sink(),
        hive.connected(table.unbound()._options, {**table.properties}, (10, 60)),
    )
    other._agent = "another"
    with server.connections() as client:
        held = client.lock(other._create_lock_request(*table.name.split(".")))
        with pytest.raises(Retriable, match="holds lock"):
            sink.commit_batch(0, batch)
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
    with pytest.raises(Exception, match="m") as found, hive._answers():
        raise raised
    assert answer(found.value) is means


def test_a_user_id_without_a_name_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", no_name)
    assert hive._user() == str(os.getuid())
