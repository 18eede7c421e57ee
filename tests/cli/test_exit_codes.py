"""Which error ends the command with which code, and that the reference lists each."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest

from twopc.cli.commands import COMMANDS, cli
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    Fenced,
    InDoubt,
    LogMismatch,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.exit_codes import ExitCode, exit_code
from twopc.log.entries import opened, serialise
from twopc.log.store import open_store


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_words_of_each_commands_own_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command
    assert " ".join(str(command.help).split()).startswith(COMMANDS[name].removesuffix("."))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("an option"), ExitCode.REFUSED),
        (LogMismatch("another query's"), ExitCode.REFUSED),
        (TransactionLost("rolled back"), ExitCode.OPERATOR_REQUIRED),
        (OutcomeUnknown("its name was used again"), ExitCode.OPERATOR_REQUIRED),
        (Fenced("a newer driver"), ExitCode.FENCED),
        (Retriable("no broker answered"), ExitCode.NO_ANSWER),
        (InDoubt("an append"), ExitCode.NO_ANSWER),
        (RoundAborted("its vote was no"), ExitCode.NO_ANSWER),
        (OSError("the disk"), ExitCode.NO_ANSWER),
        (ZeroDivisionError("ours"), ExitCode.OTHER),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_the_code_of_what_the_caller_must_do(error: BaseException, code: ExitCode) -> None:
    assert exit_code(error, opened=True) is exit_code(error, opened=False) is code


def test_a_corrupt_log_is_refused_until_the_log_is_open(tmp_path: Path) -> None:
    assert exit_code(CorruptLog("half an entry"), opened=False) is ExitCode.REFUSED
    assert exit_code(CorruptLog("half an entry"), opened=True) is ExitCode.OPERATOR_REQUIRED


def test_the_reference_lists_every_code() -> None:
    document = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    table = document.split("## Exit codes")[1].split("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]


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
