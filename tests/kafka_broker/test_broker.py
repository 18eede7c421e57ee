"""The development broker, on real processes."""

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from tests.support.topic_reader import records_of
from tests.support.waiting import until
from twopc_kafka_broker import (
    BrokerFailed,
    JarsNotAvailable,
    JavaNotFound,
    KafkaBroker,
    SourceNotPublished,
    fetch_java,
    find_java,
    jars,
)
from twopc_kafka_broker import broker as broker_module
from twopc_kafka_broker.__main__ import main
from twopc_kafka_broker.cache import publish


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(120)
def test_serves_what_was_written_before_a_stop_and_before_a_kill_at_the_same_address(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        address, first_pid = broker.bootstrap_servers, broker.pid
        broker.create_topic("orders", partitions=2, config={"retention.ms": "-1"})
        produce(address, "orders", "before the stop")

        broker.stop()
        assert broker.pid is None
        assert not accepts_connections(address)

        broker.start()
        produce(address, "orders", "before the kill")
        broker.kill()
        assert not accepts_connections(address)

        broker.start()
        assert broker.bootstrap_servers == address
        assert broker.pid != first_pid
        assert {record.value for record in records_of(address, "orders")} == {b"before the stop", b"before the kill"}


@pytest.mark.long
def test_leaves_neither_process_nor_data_behind() -> None:
    with KafkaBroker() as broker:
        pid, folder, address = broker.pid, broker.log_file.parent, broker.bootstrap_servers
        assert folder.is_dir()

    assert pid is not None
    assert not is_running(pid)
    assert not folder.exists()
    assert not accepts_connections(address)


@pytest.mark.long
@pytest.mark.crash
def test_is_gone_after_its_parent_is_killed_with_sigkill(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from twopc_kafka_broker import KafkaBroker\n"
        "broker = KafkaBroker(sys.argv[1]); broker.start()\n"
        "print(broker.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        broker_pid = int(parent.stdout.readline())
        assert is_running(broker_pid)

        parent.kill()

    until(lambda: not is_running(broker_pid), timeout_s=5)


@pytest.mark.long
def test_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    try:
        thread = threading.Thread(target=broker.start)
        thread.start()
        thread.join()
        # The time in which a kill that follows the thread's end would have come.
        time.sleep(0.5)
        broker.create_topic("orders")
    finally:
        broker.close()


def test_the_session_fixture_serves_with_the_properties_of_the_conftest(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("of-the-session")
    assert [*records_of(kafka_broker.bootstrap_servers, "of-the-session")] == []


def test_a_topic_that_exists_already_is_refused_by_name(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("twice")
    with pytest.raises(BrokerFailed, match="'twice'"):
        kafka_broker.create_topic("twice")


@pytest.mark.long
def test_a_broker_that_dies_while_it_starts_tells_the_end_of_its_log(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, properties={"num.io.threads": "many"})
    with pytest.raises(BrokerFailed, match=r"num\.io\.threads"):
        broker.start()
    assert broker.pid is None


def test_the_port_that_clients_know_is_not_exchanged_when_another_process_took_it(tmp_path: Path) -> None:
    with socket.socket() as squatter, socket.socket() as other:
        for taken in (squatter, other):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        ports = f'{{"broker": {squatter.getsockname()[1]}, "controller": {other.getsockname()[1]}}}'
        (tmp_path / "ports.json").write_text(ports)
        with pytest.raises(BrokerFailed, match="another process uses one"):
            KafkaBroker(tmp_path).start()


@pytest.mark.long
def test_a_new_broker_whose_port_was_taken_meanwhile_tries_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = squatter.getsockname()[1]
        find = broker_module._free_ports
        offers = iter([broker_module._Ports(taken, find().controller)])
        monkeypatch.setattr(broker_module, "_free_ports", lambda: next(offers, None) or find())
        broker = KafkaBroker(tmp_path)
        try:
            broker.start()
            assert broker.bootstrap_servers != f"127.0.0.1:{taken}"
        finally:
            broker.close()


def test_an_address_is_asked_for_too_early() -> None:
    with pytest.raises(BrokerFailed, match="before its first start"):
        _ = KafkaBroker().bootstrap_servers


def test_without_any_java_the_message_says_which_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(tmp_path, monkeypatch)
    with pytest.raises(JavaNotFound, match="openjdk-17-jre-headless"):
        KafkaBroker().start()


def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(tmp_path, monkeypatch)
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text(
        "#!/bin/sh\n"
        "echo '    java.home = /old' >&2; echo '    java.version = 11.0.2' >&2\n"
        "echo '    java.specification.version = 11' >&2\n"
    )
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME .*11\.0\.2, older than 17"):
        find_java()


def test_a_java_without_the_modules_that_spark_needs_is_refused_for_spark_alone() -> None:
    assert find_java().home.is_dir()
    with pytest.raises(JavaNotFound, match=r"lacks the module no\.such\.module"):
        find_java(modules=("no.such.module",))


def test_a_fetched_java_is_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_java().executable

    def install(_version: str, path: str) -> None:
        command = Path(path) / "jdk-17.0.15+6" / "bin" / "java"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
        command.chmod(0o755)

    without_java(tmp_path, monkeypatch)
    monkeypatch.setattr("jdk.install", install)
    fetched = fetch_java()
    monkeypatch.setattr("jdk.install", refuse_download)
    assert find_java() == fetch_java() == fetched


def test_the_set_up_without_java_ends_with_advice_and_without_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_java(tmp_path, monkeypatch)
    monkeypatch.setattr("jdk.install", refuse_download)
    assert main([]) == 1
    printed = capsys.readouterr().err
    assert "openjdk-17-jre-headless" in printed
    assert "no network" in printed
    assert "Traceback" not in printed


def test_jars_that_cannot_be_had_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twopc_kafka_broker import broker_classpath

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("twopc_kafka_broker.jars._download", refuse_download)
    monkeypatch.setattr("twopc_kafka_broker.jars._DOWNLOAD_ATTEMPTS", 1)
    with pytest.raises(JarsNotAvailable, match=r"kafka_2\.13-.*no network"):
        broker_classpath()


class Published:
    """A Maven project with some versions of Spark's Kafka source."""

    def __init__(self, *versions: str) -> None:
        self.metadata = SimpleNamespace(versions=versions)

    def update(self) -> None:
        pass


@pytest.mark.parametrize(
    ("spark", "source"), [("4.1.2", "4.1.2"), ("4.2.1", "4.2.0"), ("4.1.9", "4.1.10"), ("4.0.0.dev1", "4.0.2")]
)
def test_the_source_for_a_spark_is_its_own_or_the_newest_of_its_minor_version(spark: str, source: str) -> None:
    published: Any = Published("4.0.2", "4.1.2", "4.1.10", "4.2.0", "4.2.0-preview5")
    assert jars._newest_source(published, spark) == source


def test_a_spark_without_a_source_is_told_the_newest_that_has_one_and_the_pin() -> None:
    published: Any = Published("4.1.2", "4.10.0", "4.2.0", "5.0.0-preview1")
    with pytest.raises(SourceNotPublished, match=r"Spark 4\.3\.0; the newest is for 4\.10\.0.*'pyspark==4\.10\.0'"):
        jars._newest_source(published, "4.3.0")


def test_where_the_versions_cannot_be_listed_the_download_tells() -> None:
    published: Any = Published()
    assert jars._newest_source(published, "4.3.0") == "4.3.0"


def test_an_interrupted_download_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    def whole(folder: Path) -> None:
        (folder / "all").write_text("")

    target = tmp_path / "cache" / "jars"
    with pytest.raises(KeyboardInterrupt):
        publish(target, interrupted)
    assert not target.exists()
    assert [path.name for path in publish(target, whole).iterdir()] == ["all"]


def without_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def refuse_download(*_: object, **__: object) -> None:
    raise OSError("no network")


def produce(address: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, value=value)
    assert producer.flush(10) == 0


def accepts_connections(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)  # which nobody waits for
    except psutil.NoSuchProcess:
        return False
