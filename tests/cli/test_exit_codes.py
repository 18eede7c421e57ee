"""How a command ends: its help, its codes, and a result that nobody takes."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest

from twopc.cli.commands import COMMANDS, cli
from twopc.errors import CorruptLog, Fenced
from twopc.exit_codes import ExitCode, exit_code
from twopc.log.entries import opened
from twopc.log.entry_json import serialise
from twopc.log.history import FollowedLog
from twopc.log.store import open_store


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_words_of_each_commands_own_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command
    assert " ".join(str(command.help).split()).startswith(COMMANDS[name].removesuffix("."))


@pytest.mark.parametrize(
    ("error", "code"),
    [(Fenced("a newer driver"), ExitCode.FENCED), (OSError("the disk"), ExitCode.NO_ANSWER)],
)
def test_an_error_has_its_code_whether_or_not_the_log_was_opened(error: Exception, code: ExitCode) -> None:
    assert exit_code(error, opened=True) is exit_code(error, opened=False) is code


def test_a_corrupt_log_is_refused_until_the_log_is_open() -> None:
    assert exit_code(CorruptLog("half an entry"), opened=False) is ExitCode.REFUSED
    assert exit_code(CorruptLog("half an entry"), opened=True) is ExitCode.OPERATOR_REQUIRED


def test_a_result_that_nobody_can_take_is_told_in_a_line_and_by_its_code(tmp_path: Path) -> None:
    open_store(str(tmp_path / "log")).put_if_absent(0, serialise(opened(None, "query")))
    command = [sys.executable, "-m", "twopc.cli", "status", str(tmp_path / "log")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.NO_ANSWER
    assert done.stderr == "twopc: the result can't be written to standard output: No space left on device.\n"


def test_the_command_shows_the_version_of_its_distribution(run: Callable[..., Any]) -> None:
    done = run("--version")
    assert (done.code, done.out) == (0, f"twopc, version {version('twopc-core')}\n")


def test_a_log_whose_store_does_not_answer_is_no_wrong_usage(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "no answer")

    monkeypatch.setattr(FollowedLog, "_read", away)
    done = look("status", tmp_path)
    assert done.code == ExitCode.NO_ANSWER
    assert "can't be read (TimeoutError: no answer). Nothing was changed. Try again" in done.err


def test_a_result_is_shown_whole_where_the_locale_lacks_a_letter(tmp_path: Path) -> None:
    open_store(str(tmp_path / "lög")).put_if_absent(0, serialise(opened(None, "query")))
    command = [sys.executable, "-m", "twopc.cli", "status", str(tmp_path / "lög")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.FINE, "")
    assert "l\\xf6g" in done.stdout
    assert "Nothing is in doubt." in done.stdout


@pytest.mark.parametrize("time", ["nan", "inf", "1e300"])
@pytest.mark.parametrize("command", [("doctor", "--sinks", "x", "--timeout-s"), ("serve-metrics", "x", "--interval-s")])
def test_a_time_that_no_thread_can_wait_is_refused(run: Callable[..., Any], command: Sequence[str], time: str) -> None:
    done = run(*command, time)
    assert done.code == ExitCode.USAGE
    assert f"{time} is not a number of seconds that can be waited" in done.err
