"""A run starts each server once, and every worker learns the outcome."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.leftovers import left, running
from tests.support.once_per_run import ADDRESS, once_per_run
from tests.support.shared_servers import SharedServers


class Starts:
    """What is started here, by name."""

    def __init__(self) -> None:
        self.attempts: list[str] = []
        self.ended: list[str] = []

    def works(self, ended: contextlib.ExitStack, folder: Path) -> str:
        self.attempts.append("works")
        ended.callback(self.ended.append, "works")
        assert folder.is_dir()
        return "an address"

    def is_missing(self, ended: contextlib.ExitStack, folder: Path) -> None:
        self.attempts.append("missing")
        pytest.skip("install it")

    def fails(self, ended: contextlib.ExitStack, folder: Path) -> None:
        self.attempts.append("fails")
        raise OSError("no port")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    starts = Starts()
    of_names = {"works": starts.works, "missing": starts.is_missing, "fails": starts.fails}
    with SharedServers(of_names) as servers:
        monkeypatch.setenv(ADDRESS, servers.address)
        yield starts


def test_a_server_is_started_once_and_ended_with_the_run(starts: Starts) -> None:
    assert [once_per_run("works") for _ in range(3)] == ["an address"] * 3
    assert starts.attempts == ["works"]
    assert starts.ended == []


def test_what_can_not_be_installed_is_tried_once_and_skips_every_test_with_the_reason(starts: Starts) -> None:
    for _ in range(3):
        with pytest.raises(pytest.skip.Exception, match="install it"):
            once_per_run("missing")
    assert starts.attempts == ["missing"]


def test_a_start_that_fails_is_tried_once_and_fails_every_test_with_its_traceback(starts: Starts) -> None:
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match="no port"):
            once_per_run("fails")
    assert starts.attempts == ["fails"]


def test_servers_end_when_the_run_does() -> None:
    starts = Starts()
    with SharedServers({"works": starts.works}) as servers:
        servers.outcome("works").result()
    assert starts.ended == ["works"]


@pytest.mark.long
def test_a_file_that_a_test_leaves_open_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDS_WITHIN_S", 0)
    before = running()
    with (tmp_path / "left").open("w"):
        assert left(before) == {f"file {tmp_path / 'left'}"}
    assert left(before) == set()
