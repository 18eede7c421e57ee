"""``report --serve``: the page over HTTP, from a log that is read again."""

from __future__ import annotations

import re
import select
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import twopc
from tests.support.browser import browser
from tests.support.s3_server import free_port
from tests.support.terminal import COMMAND, Terminal
from twopc.cli.live import LivePage
from twopc.cli.page import Contents
from twopc.errors import ConfigurationError
from twopc.testing import MemorySink, MemoryTarget


class Server:
    """The command without a terminal."""

    def __init__(self, log: Path) -> None:
        command = [sys.executable, "-u", "-c", COMMAND, "report", str(log), "--serve", "--port", "0"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        found = re.search(r"http://127\.0\.0\.1:\d+/", self.line())
        assert found
        self.url = found[0]

    def line(self) -> str:
        """The next line of its messages."""
        assert self.process.stderr
        assert select.select([self.process.stderr], [], [], 30)[0], "no line for 30 s"
        return self.process.stderr.readline()

    def get(self, path: str = "", **headers: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def query(tmp_path: Path) -> twopc.Coordinator:
    coordinator = twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(tmp_path / "log"), owner="orders")
    coordinator.run(0, lambda _: [])
    return coordinator


@pytest.fixture
def server(tmp_path: Path, query: twopc.Coordinator) -> Iterator[Server]:
    started = Server(tmp_path / "log")
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.wait()
        assert started.process.stderr
        started.process.stderr.close()


def test_it_serves_what_the_log_has_by_then(server: Server, query: twopc.Coordinator, wait: Any) -> None:
    assert "<dt>last decided batch</dt><dd>0</dd>" in server.get()[1]
    query.run(1, lambda _: [])
    wait("batch 1 is shown", lambda: "<dt>last decided batch</dt><dd>1</dd>" in server.get()[1])
    query.close()


@pytest.mark.long
def test_a_log_that_can_not_be_read_is_shown_and_the_server_goes_on(server: Server, tmp_path: Path, wait: Any) -> None:
    assert server.get()[0] == 200
    (tmp_path / "log").rename(tmp_path / "away")
    wait("the error is shown", lambda: server.get()[0] == 503)
    page = server.get()[1]
    assert "Not up to date: ConfigurationError: there is no commit log at" in page
    assert "Query orders" in page
    assert "there is no commit log at" in server.line()
    (tmp_path / "away").rename(tmp_path / "log")
    wait("the log is read again", lambda: server.get()[0] == 200)
    assert server.line() == "twopc: the log can be read again\n"


def test_a_page_of_another_site_gets_nothing(server: Server) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
        code, text = server.get(Host=host)
        assert (code, "orders" in text) == (421, False), host
    assert server.get(Host="localhost:9")[0] == 200  # a tunnel may have another port


@pytest.mark.long
def test_a_browser_that_is_gone_is_not_reported(server: Server, tmp_path: Path, wait: Any) -> None:
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(b"GET / HTTP/1.0\r\n")
        assert server.get()[0] == 200  # by then, the other one is being read
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
    (tmp_path / "log").rename(tmp_path / "away")
    wait("the error is shown", lambda: server.get()[0] == 503)
    assert "there is no commit log at" in server.line()


def test_it_serves_one_page_and_takes_nothing(server: Server) -> None:
    assert server.get("../etc/passwd")[0] == 404
    assert server.get("//[")[0] == 404
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(server.url, data=b"x", timeout=30)  # noqa: S310
    assert refused.value.code == 501
    assert server.get("?show=<script>&range-0&pause=%00")[0] == 200
    assert "<script" not in server.get("?show=<script>")[1]


@pytest.mark.long
def test_a_page_that_is_paused_does_not_load_itself_again(server: Server) -> None:
    assert '<meta http-equiv="refresh" content="5">' in server.get()[1]
    assert '<meta http-equiv="refresh"' not in server.get("?pause")[1]


def test_ctrl_c_ends_it_with_the_code_of_the_last_state(server: Server, query: twopc.Coordinator) -> None:
    query.close()
    assert server.get()[0] == 200
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0


def test_a_port_in_use_is_refused(tmp_path: Path, look: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = look("report", tmp_path / "log", "--serve", "--port", port)
    assert done.code == 3
    assert f"port {port} of 127.0.0.1 can't be used: Address already in use. Name another with --port" in done.err


def test_a_terminal_shows_what_was_read(
    tmp_path: Path, query: twopc.Coordinator, terminal: Callable[..., Terminal], wait: Any
) -> None:
    port = free_port()
    shown = terminal("report", tmp_path / "log", "--serve", "--port", port)
    wait("it listens", lambda: shown.shows("shows the log. Ctrl-C ends this."))
    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).close()
    wait("the state is shown", lambda: shown.shows("batch 0 decided, 1 in doubt"))
    shown.process.send_signal(signal.SIGINT)
    assert shown.process.wait(30) == 1
    query.close()


def test_the_log_is_read_at_most_once_a_second_and_after_a_slow_read_less_often() -> None:
    now_s, took_s, reads = 100.0, 0.0, 0

    def read() -> Contents:
        nonlocal now_s, reads
        reads += 1
        now_s += took_s
        raise ConfigurationError("no log yet")

    page = LivePage(read, lambda _: None, lambda: now_s)
    for _ in range(3):
        assert page.show("", False)[0] is False
    assert reads == 1
    now_s, took_s = now_s + 1, 3.0
    page.show("", False)
    now_s += 5.9
    page.show("", False)
    assert reads == 2
    now_s += 0.1
    page.show("", False)
    assert reads == 3


def test_a_defect_in_reading_is_shown_too() -> None:
    def read() -> Contents:
        raise ZeroDivisionError("<b>boom</b>")

    is_up_to_date, text = LivePage(read, lambda _: None).show("", False)
    assert not is_up_to_date
    assert "ZeroDivisionError: &lt;b&gt;boom&lt;/b&gt;" in text


@pytest.mark.long
def test_a_browser_keeps_the_filter_when_the_page_loads_again(server: Server) -> None:
    with browser() as started:
        page = started.new_page()
        page.goto(f"{server.url}?show=in_doubt")
        with page.expect_event("load", timeout=60_000):
            pass  # by itself
        assert page.locator("tr.moment:visible").count() == 1
