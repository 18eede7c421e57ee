"""The checks before the first batch, and how they are shown."""

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.raising import raising
from twopc import CheckResult, Participant, Round, register_observer, unregister_observer
from twopc.cli.waiting import NoAnswer, Waiting
from twopc.diagnosis import LOG_ID
from twopc.errors import Retriable
from twopc_files.sink import FileSink

SECRET = "hunter2-and-more"  # noqa: S105  # what must not be seen


def kafka_table(servers: str) -> str:
    return f'[orders]\nbackend = "kafka"\ntopic = "orders-of-${{PASSWORD}}"\nbootstrap.servers = "{servers}"\n'


def results(done: Any, sink: str | None) -> list[tuple[str, str]]:
    return [(row["result"], row["check"]) for row in done.json["checks"] if row["sink"] == sink]


def test_what_works_passes_and_is_as_it_was(shop: Any, look: Any) -> None:
    before = shop.snapshot()
    done = look("doctor", "--sinks", shop.sinks, "--log", shop.log, "--json")
    assert (done.code, done.err) == (0, "")
    assert {row["result"] for row in done.json["checks"]} == {"passed"}
    assert ("passed", f"trial file in {shop.target}") in results(done, "archive")
    assert ("passed", "commit log") in results(done, None)
    assert shop.snapshot() == before
    assert not shop.target.exists()
    assert not shop.log.exists()


def test_a_failed_check_is_shown_with_what_to_do_beside_all_that_passed(shop: Any, run: Any) -> None:
    wrong = shop.sinks / "orders"
    shop.sinks.write_text(f'[broken]\nbackend = "files"\npath = "{wrong}"\n' + shop.sinks.read_text())
    done = run("doctor", "--sinks", shop.sinks, "--log", shop.sinks / "log")
    assert done.code == 4
    assert f"[Errno 20] Not a directory: '{wrong}" in done.out
    assert f"a commit log can't be kept at {shop.sinks / 'log'}" in done.out
    assert re.search(rf"^archive +trial file in {shop.target} +passed$", done.out, re.MULTILINE)
    assert done.out.rstrip().endswith("4 passed, 0 warning, 2 failed")


def test_the_next_run_removes_what_a_killed_one_left(shop: Any, look: Any) -> None:
    sink = FileSink({"path": str(shop.target)})
    sink.bind("archive", LOG_ID)
    participant = Participant({"archive": sink}, Round(0, 0), partition=0)
    participant.write("archive", pa.record_batch({"value": ["a"]}))
    participant.pre_commit()
    assert list(sink.recover())
    assert look("doctor", "--sinks", shop.sinks).code == 0
    assert not list(sink.recover())


@pytest.mark.crash
def test_a_log_that_is_there_is_read_and_compared_with_the_sinks(shop: Any, look: Any) -> None:
    shop.drive("committing")
    before = shop.snapshot()
    done = look("doctor", "--sinks", shop.sinks, "--log", shop.log, "--json")
    assert done.code == 0
    assert re.fullmatch(r"\d+ entries of query shop", done.json["checks"][1]["detail"])
    assert shop.snapshot() == before
    min(shop.log.glob("*.json")).write_text("{}")
    done = look("doctor", "--sinks", shop.sinks, "--log", shop.log, "--json")
    assert (done.code, results(done, None)[-1]) == (4, ("failed", "commit log"))


def test_a_target_where_no_server_listens_fails_and_keeps_no_other_from_being_checked(
    shop: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_kafka.client.control.CONNECT_TIMEOUT_MS", 100)
    monkeypatch.setattr("twopc.checks.PATIENCE_S", 0.1)
    shop.sinks.write_text(kafka_table("127.0.0.1:1") + shop.sinks.read_text())
    done = look("doctor", "--sinks", shop.sinks, "--json", PASSWORD=SECRET)
    assert done.code == 4
    assert results(done, "orders")[-1] == ("failed", "list of open transactions")
    assert "no broker answered at 127.0.0.1:1" in done.out
    assert {result for result, _ in results(done, "archive")} == {"passed"}
    assert SECRET not in done.out + done.err


@pytest.mark.long
def test_a_target_that_is_silent_is_named_while_it_is_waited_for_and_the_wait_ends(
    shop: Any, run: Any, silent: str
) -> None:
    shop.sinks.write_text(shop.sinks.read_text() + kafka_table(silent))
    started = time.monotonic()
    done = run("doctor", "--sinks", shop.sinks, "--timeout-s", 3, "--json", PASSWORD=SECRET)
    assert time.monotonic() - started < 60  # and not for ever, however busy the machine is
    assert (done.code, done.json["error"]["kind"]) == (6, "NoAnswer")
    assert "checking sink 'orders': 2 s" in done.err
    assert {result for result, _ in results(done, "archive")} == {"passed"}
    assert SECRET not in done.out + done.err


@pytest.mark.long
def test_a_wait_that_ends_before_the_client_gives_up_ends_with_what_the_client_has_met(shop: Any, run: Any) -> None:
    shop.sinks.write_text(kafka_table("127.0.0.1:1"))
    done = run("doctor", "--sinks", shop.sinks, "--timeout-s", 1, "--json", PASSWORD=SECRET)
    assert (done.code, done.json["error"]["kind"]) == (6, "NoAnswer")
    message = done.json["error"]["message"]
    assert "while checking sink 'orders'. The last warning of its client: " in message
    assert "ECONNREFUSED" in message
    assert SECRET not in done.out + done.err


def test_a_wait_that_ends_amid_repeated_tries_ends_with_why_they_failed() -> None:
    has_started = threading.Event()

    def refused() -> None:
        if not has_started.is_set():
            raise Retriable("the server starts up")

    waiting = Waiting(0.5, lambda _: None)
    register_observer(waiting)
    try:
        with pytest.raises(NoAnswer, match=r"while checking sink 'a': it answers \(attempt \d+: the server starts up"):
            waiting.call("checking sink 'a'", CheckResult.of, "it answers", refused)
    finally:
        unregister_observer(waiting)
        has_started.set()  # the call that was left behind ends


def test_an_ended_wait_reports_the_clients_last_warning_and_none_of_twopc() -> None:
    ended = threading.Event()

    def silent() -> None:
        logging.getLogger("a.client").warning("refused")
        logging.getLogger("twopc.retry").warning("no answer for 2 s")
        ended.wait(10)

    with pytest.raises(NoAnswer, match=r"The last warning of its client: refused\. Check that the target system"):
        Waiting(0.5, lambda _: None).call("checking sink 'a'", silent)
    ended.set()


@pytest.mark.long
def test_a_topic_is_checked_and_no_secret_is_shown(shop: Any, run: Any, kafka_broker: Any) -> None:
    shop.sinks.write_text(kafka_table(kafka_broker.bootstrap_servers))
    done = run("doctor", "--sinks", shop.sinks, PASSWORD=SECRET)
    assert done.code == 4
    assert "topic 'orders-of-${PASSWORD}': existence" in done.out
    assert "Create it with the partitions that you want" in done.out
    assert SECRET not in done.out + done.err


@pytest.mark.parametrize(
    ("plugin", "sink", "check"),
    [("twopc.log.store.LocalStore", None, "commit log"), ("twopc_files.sink.FileSink", "archive", "remaining checks")],
)
def test_a_plugins_check_that_raises_anything_has_failed(
    plugin: str, sink: str | None, check: str, shop: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{plugin}.check", raising(KeyError("the plugin's own mistake")))
    done = look("doctor", "--sinks", shop.sinks, "--log", shop.log, "--json")
    assert done.code == 4
    assert ("failed", check) in results(done, sink)
    assert "KeyError" in done.out


@pytest.mark.parametrize(
    ("options", "result"), [("rw,vers=4.2", "warning"), ("rw,acdirmin=0,acdirmax=0", "passed"), (None, None)]
)
def test_a_log_on_a_network_filesystem_is_checked_for_late_listings(
    options: str | None, result: str | None, shop: Any, look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_text("" if options is None else f"36 35 0:44 / / rw shared:1 - nfs4 server:/export {options}\n")
    monkeypatch.setattr("twopc.stores.mounts._MOUNTS", listed)
    done = look("doctor", "--sinks", shop.sinks, "--log", shop.log, "--json")
    assert done.code == 0
    what = "visibility of new entries to other machines"
    assert [found for found in results(done, None) if found[1] == what] == ([(result, what)] if result else [])
    if result == "warning":
        assert "late on nfs4, mounted at /: it may show" in done.out


# A query, as its own program builds it. -----------------------------------------------------------------------------

JOB = """
import twopc
from twopc.spark import Output, foreach_batch

FOLDER = {folder!r}
OPTIONS = {{"sink": "files", "path": FOLDER + "/archive", "checkpointLocation": FOLDER + "/checkpoint"}}
WRONG = {{**OPTIONS, "pathh": "x"}}
NUMBER = 3


def write():
    archive = twopc.create_sink("files", {{"path": FOLDER + "/archive"}})
    bad = twopc.create_sink("files", {{"path": FOLDER + "/bad"}})
    return foreach_batch({{"archive": Output(archive, ["id"])}}, log=FOLDER + "/log", bad_records=bad)


WRITER = write()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of a query, in the current folder."""
    name = f"job_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(JOB.format(folder=str(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("name", ["write", "WRITER"])
def test_a_query_is_checked_by_what_its_program_passes_to_foreach_batch(name: str, job: str, look: Any) -> None:
    done = look("doctor", "--query", f"{job}:{name}", "--json")
    assert (done.code, done.err) == (0, "")
    assert {row["sink"] for row in done.json["checks"]} == {None, "archive", "bad_records"}
    assert list(done.json["checks"][0]) == ["sink", "check", "result", "detail", "advice"]
    assert not Path("data").exists()


def test_a_query_is_checked_by_the_options_of_its_format(job: str, look: Any) -> None:
    done = look("doctor", "--query", f"{job}:OPTIONS")
    assert done.code == 0, done.out + done.err
    assert re.search(r"^sink +trial file in \S+/data/archive +passed$", done.out, re.MULTILINE)
    assert re.search(r"^\(the log\) +commit log +passed +none yet", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("WRONG", "no option 'pathh'"),
        ("NUMBER", "not by an object of class int"),
        ("absent", "has no attribute 'absent'"),
        ("", "--query takes MODULE:NAME"),
    ],
)
def test_a_query_that_can_not_be_checked_is_refused(name: str, reason: str, job: str, look: Any) -> None:
    done = look("doctor", "--query", f"{job}:{name}")
    assert done.code == 3
    assert reason in done.err


@pytest.mark.parametrize(
    ("program", "reason"), [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(0)", "SystemExit: 0")]
)
def test_a_module_that_fails_or_ends_itself_is_refused(program: str, reason: str, job: str, look: Any) -> None:
    name = f"{job}_{len(program)}"
    Path(f"{name}.py").write_text(program)
    done = look("doctor", "--query", f"{name}:write")
    assert (done.code, reason in done.err) == (3, True)


@pytest.mark.parametrize("arguments", [(), ("--query", "a:b", "--sinks", "s.toml"), ("--query", "a:b", "--log", "x")])
def test_a_query_or_a_file_is_given(arguments: tuple[str, ...], look: Any) -> None:
    assert look("doctor", *arguments).code == 2
