"""Servers that all workers of a run share, one Spark session, and which worker runs a test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.logging import caplog_records_key
from hypothesis import settings

from tests.support.aws_models import keep_models
from tests.support.hdfs_server import HdfsServer, why_not
from tests.support.leftovers import OfTheRun, left, of_the_run, running
from tests.support.once_per_run import ADDRESS, once_per_run
from tests.support.pages import ROOT
from tests.support.shared_servers import SharedServers
from tests.support.spark_home import set_java_and_python
from tests.support.spark_session import session
from tests.support.turns import take_turns
from twopc import resting
from twopc.testing import SinkContract
from twopc.testing.kills import FEW
from twopc_kafka.client import cluster, control
from twopc_kafka_broker import spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARED = frozenset(
    ("kafka_broker", "postgres_server", "mariadb_server", "s3_server", "azurite", "gcs_server", "databases")
)
"""Fixtures of servers that are started once per run."""

OWNED = (
    *("spark", "broker_to_kill", "broker_without_timeouts", "three_brokers", "quick_broker", "hdfs_server"),
    *("pravega_server", "server_to_kill"),
)
"""Fixtures of servers that are started once per run too, as all tests that use one run on one worker. The first ones
take longest, so they begin first."""

SERVERS = SHARED | {*OWNED, "server"}
"""A test with none of these fixtures, and without the mark of this name, is one of ``make unit``."""

KILLS_IN_THE_CONTRACT = SinkContract.test_a_process_killed_at_any_step_neither_loses_nor_doubles_a_record.__name__


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="run the files of one part of all, such as 2/4")


def pytest_configure(config: pytest.Config) -> None:
    """Offer the servers of this run, unless this process is a worker of a run that has them."""
    config.pluginmanager.register(OfTheRun(), OfTheRun.__name__)
    keep_models()
    # The gate draws the same few values in every run. Others are for `make test-all`, which clears the variable.
    settings.register_profile("gate", derandomize=True, max_examples=30)
    if os.environ.get(FEW, "gate"):
        settings.load_profile("gate")
    os.environ.setdefault(FEW, f"3@{_commit_number()}")
    if ADDRESS not in os.environ:
        # All workers and the hundreds of processes that tests start load what one of them has compiled.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        servers = SharedServers()
        os.environ[ADDRESS] = servers.address
        config.add_cleanup(servers.close)


def _commit_number() -> int:
    """Return a number of the commit under test, so that successive commits kill at other steps. 0: there is no git."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout, 16)
    except (OSError, subprocess.SubprocessError):
        return 0


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests need a server, and which of them one worker runs. Put those first that take longest."""
    part, parts = map(int, config.getoption("part").split("/"))
    files = sorted({item.path for item in items})
    chosen = {path for number, path in enumerate(files) if number % parts == part - 1}
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = sorted((item for item in items if item.path in chosen), key=_place)
    for item in items:
        if not SERVERS.isdisjoint(_fixtures(item)):
            item.add_marker(pytest.mark.server)
        if item.get_closest_marker("variants") and any(item.callspec.indices.values()):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.long)
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
        # The contract ships without this project's marks.
        if item.name.partition("[")[0] == KILLS_IN_THE_CONTRACT:
            item.add_marker(pytest.mark.crash)
    take_turns(items, int(os.environ[FEW].partition("@")[2] or 0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the thousands of tests and the modules that they import out of every garbage collection."""
    gc.disable()
    try:
        collected = yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let go of errors in log records, and of a ``SkipTest``: their frames keep files open, which count as left."""
    item.stash.get(caplog_records_key, {}).get("call", []).clear()
    sys.last_value = sys.last_traceback = sys.last_exc = None  # type: ignore[attr-defined,unused-ignore]


def _fixtures(item: pytest.Item) -> frozenset[str]:
    return frozenset(getattr(item, "fixturenames", ()))


def _group(item: pytest.Item) -> str | None:
    """Return the name of the tests that run on the worker of this one. None: any worker may run it."""
    for fixture in OWNED:
        if fixture in _fixtures(item):
            return fixture
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    of_module = (each for found in definitions.values() for each in found if each.scope in ("module", "class"))
    return str(item.path) if any(each.argname not in OF_EVERY_MODULE for each in of_module) else None


def _place(item: pytest.Item) -> int:
    places = [place for place, fixture in enumerate(OWNED) if fixture in _fixtures(item)]
    return min(places, default=len(OWNED))


@pytest.fixture(scope="module", autouse=True)
def nothing_of_a_module_goes_on_after_it(pytestconfig: pytest.Config) -> Iterator[None]:
    """Coordinators that a test has not closed would rest, and connections look for brokers that are gone, with more and
    more sockets: py4j can select none above the 1023rd. All else a test ends itself."""
    before = running()
    yield
    for coordinator in tuple(resting._resting):
        resting._resting.discard(coordinator)
        coordinator._busy.set()
    for of_process in (control._controls, cluster._clusters):
        while of_process._kept:
            of_process._kept.popitem()[1].close()
    if not hasattr(pytestconfig, "workerinput"):
        return  # this process has the servers of the run, too
    if leftovers := left(before | of_the_run(pytestconfig).started):
        pytest.fail("not ended by the tests of this module:\n" + "\n".join(sorted(leftovers)), pytrace=False)


@pytest.fixture
def unpooled_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's catalogs keep no connection. Spark keeps an ended query's function, with its sink and catalog."""
    import sqlalchemy
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite as Dialect

    monkeypatch.setattr(Dialect, "get_pool_class", classmethod(lambda cls, url: sqlalchemy.NullPool))


OF_EVERY_MODULE = (nothing_of_a_module_goes_on_after_it.__name__,)


def _of_the_run(name: str) -> Any:
    """Return a fixture of a server that all workers share."""

    @pytest.fixture(scope="session")
    def server() -> Any:
        return once_per_run(name)

    return server


kafka_broker = _of_the_run("kafka")
postgres_server = _of_the_run("postgres")
mariadb_server = _of_the_run("mariadb")
s3_server = _of_the_run("s3")
azurite = _of_the_run("azurite")
gcs_server = _of_the_run("gcs")


@pytest.fixture(scope="session")
def java_home() -> str:
    """A Java for Spark, in the environment of this process and of the drivers that it starts."""
    return set_java_and_python()


@pytest.fixture(scope="session")
def spark(java_home: str) -> Iterator[SparkSession]:
    """One session for all tests. A task is tried twice: master ``local`` alone would not try again."""
    import pyspark

    assert java_home
    settings = {
        # Several record batches per task, so that a transaction is begun before the last record is read.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100"
    }
    jars = ":".join(map(str, spark_kafka_jars(pyspark.__version__)))
    running = session("local[2,2]", settings, jars=jars, log_level="OFF")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """One HDFS for all tests of a process."""
    if why := why_not():
        pytest.skip(why)
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server
