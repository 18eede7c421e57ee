"""How a driver ends: its exit code tells a supervisor whether to start it again."""

import builtins
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.driver import BACKENDS, driver
from tests.support.pages import DOCS
from tests.support.waiting import until
from twopc import errors
from twopc.exit_codes import ExitCode
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.spark import exit_code, exiting

MODES = ("foreach_batch", "format")

EVERY_CODE = {
    "TwoPhaseCommitError": ExitCode.OTHER,
    "Retriable": ExitCode.NO_ANSWER,
    "RoundAborted": ExitCode.NO_ANSWER,
    "InDoubt": ExitCode.NO_ANSWER,
    "Fenced": ExitCode.FENCED,
    "Refused": ExitCode.REFUSED,
    "ConfigurationError": ExitCode.REFUSED,
    "SchemaMismatch": ExitCode.REFUSED,
    "RecordRefused": ExitCode.REFUSED,
    "LogMismatch": ExitCode.REFUSED,
    "PoolExhausted": ExitCode.REFUSED,
    "OperatorRequired": ExitCode.OPERATOR_REQUIRED,
    "RepeatedFailure": ExitCode.OPERATOR_REQUIRED,
    "TransactionLost": ExitCode.OPERATOR_REQUIRED,
    "OutcomeUnknown": ExitCode.OPERATOR_REQUIRED,
    "CorruptLog": ExitCode.OPERATOR_REQUIRED,
}


class OfABackend(errors.TransactionLost):
    """An error that only the process that raised it may know."""


class Spark(Exception):
    """PySpark's error: text, with tracebacks in it."""


def folder_of_query(tmp_path: Path, faults: dict[str, str]) -> Path:
    for name in ("source", "faults"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "0.json").write_text('{"value": "a"}\n')
    for step, fault in faults.items():
        (tmp_path / "faults" / step).write_text(fault)
    return tmp_path


ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join((str(BACKENDS), os.environ.get("PYTHONPATH", ""))),
    "PYSPARK_PYTHON": sys.executable,
}


OPERATOR = "an operator must act before the next start"
RESTART = "it may be started again"


@contextlib.contextmanager
def ending(folder: Path, mode: str, *, ends: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    job = {"scene": "exiting", "folder": str(folder), "mode": mode, "ends": ends}
    with driver(job, ENVIRONMENT) as process:
        yield process


def last_line(folder: Path) -> str:
    """The last line that the driver has printed, whether to stdout or stderr, or its JVM has."""
    return (folder / "driver.log").read_text().splitlines()[-1]


ENDS: dict[str, tuple[str, str, ExitCode, str]] = {
    "refused": ("seal", "raise ConfigurationError", ExitCode.REFUSED, "ConfigurationError: .*a fault at seal"),
    "refused in a task": (
        "pre_commit",
        "raise RecordRefused",
        ExitCode.REFUSED,
        "RecordRefused: .*a fault at pre_commit",
    ),
    "lost": ("commit", "raise TransactionLost", ExitCode.OPERATOR_REQUIRED, "TransactionLost: .*a fault at commit"),
    "fenced": ("seal", "fence {log}", ExitCode.FENCED, "Fenced: .*a newer coordinator has opened the log"),
    "rolled back": ("seal", "raise RoundAborted", ExitCode.NO_ANSWER, "RoundAborted: .*a fault at seal"),
    "unknown": ("complete", "raise", ExitCode.OTHER, "RuntimeError: a fault at complete"),
}
"""Name → the step that fails, the fault, the exit code, and the sentence of the last line."""


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENDS)
def test_a_driver_ends_with_the_code_of_its_error_and_prints_its_sentence_last(
    name: str, mode: str, tmp_path: Path
) -> None:
    step, fault, code, sentence = ENDS[name]
    folder = folder_of_query(tmp_path, {step: fault.format(log=tmp_path / "log")})
    with ending(folder, mode) as process:
        assert process.wait(timeout=200) == code, (folder / "driver.log").read_text()
    advice = OPERATOR if code in (3, 4, 5) else RESTART
    assert re.match(rf"twopc: exit code {int(code)}: {advice}\. {sentence}", last_line(folder))


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("asked", "code"), [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, ExitCode.INTERRUPTED)]
)
def test_a_driver_that_is_asked_to_end_does_not_end_with_zero(
    asked: signal.Signals, code: ExitCode, mode: str, tmp_path: Path
) -> None:
    """On SIGTERM it finishes its batch. Ctrl-C reaches the JVM as well."""
    folder = folder_of_query(tmp_path, {})
    with ending(folder, mode) as process:
        # The time of a start of Spark on a busy machine.
        until(lambda: process.poll() is not None or any((folder / "archive").glob("*.json")), timeout_s=200)
        os.killpg(process.pid, asked) if asked is signal.SIGINT else process.send_signal(asked)
        assert process.wait(timeout=100) == code, (folder / "driver.log").read_text()
    if asked is signal.SIGINT:  # the JVM may still print what it interrupts
        assert f"\ntwopc: exit code 130: {RESTART}. KeyboardInterrupt" in (folder / "driver.log").read_text()
        return
    tail = read_tail(open_store(str(folder / "log")))
    assert tail is not None
    assert (tail[1].kind, tail[1].decided) == ("close", 0)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_driver_whose_query_is_complete_ends_with_zero(mode: str, tmp_path: Path) -> None:
    folder = folder_of_query(tmp_path, {})
    with ending(folder, mode, ends=True) as process:
        assert process.wait(timeout=200) == ExitCode.FINE, (folder / "driver.log").read_text()
    assert len([*(folder / "archive").glob("*.json")]) == 1
    assert "exit code" not in (folder / "driver.log").read_text()


def test_the_pages_have_the_codes_that_drivers_end_with() -> None:
    table = (DOCS / "cli.md").read_text(encoding="utf-8").partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]
    stopped = [int(code) for code in ExitCode if code.stays_stopped]
    assert f"After {stopped[0]}, {stopped[1]} and {stopped[2]}, leave the driver" in " ".join(
        (DOCS / "production.md").read_text(encoding="utf-8").split()
    )
    assert f"must not restart a driver after {stopped[0]}, {stopped[1]} and {stopped[2]}." in table


@pytest.mark.variants
@pytest.mark.parametrize(("error", "holds"), [("Fenced", True), ("Retriable", False)])
def test_a_driver_that_is_to_be_held_waits_for_an_operator_and_says_why_in_a_file(
    error: str, holds: bool, tmp_path: Path
) -> None:
    file = tmp_path / "held"
    file.write_text("by an earlier driver")
    program = (
        "from twopc import errors\nfrom twopc.spark import exiting\n"
        f"with exiting(hold={str(file)!r}):\n    raise errors.{error}('a newer driver goes on')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or (file.exists() and "exit code" in file.read_text()))
        assert process.poll() == (None if holds else ExitCode.NO_ANSWER)
        assert file.exists() is holds
        assert not holds or file.read_text().startswith(
            "twopc: held back from exit code 5: Fenced: a newer driver goes on;"
        )
    finally:
        process.kill()
        process.wait()


def test_a_file_that_can_not_hold_a_driver_is_refused_before_the_driver_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []
    with pytest.raises(SystemExit) as ended, exiting(hold=tmp_path / "absent" / "held"):
        ran.append(True)
    assert (ended.value.code, ran) == (ExitCode.REFUSED, [])
    assert "'hold' must be a file that the driver can write" in capsys.readouterr().err


@pytest.mark.long
def test_a_driver_is_held_though_its_reason_can_not_be_written(tmp_path: Path) -> None:
    folder, said = tmp_path / "folder", tmp_path / "said"
    folder.mkdir()
    program = (
        "import pathlib\nfrom twopc import errors\nfrom twopc.spark import exiting\n"
        f"with exiting(hold={str(folder / 'held')!r}):\n"
        f"    pathlib.Path({str(folder)!r}).rmdir()\n    raise errors.Fenced('a newer driver goes on')\n"
    )
    with said.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-u", "-c", program], stderr=stderr)
    try:
        until(lambda: process.poll() is not None or "the reason can't be written" in said.read_text())
        assert process.poll() is None, said.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("kind", "code"), EVERY_CODE.items())
def test_each_error_is_found_itself_as_a_cause_and_in_a_traceback(kind: str, code: ExitCode) -> None:
    error: Exception = getattr(errors, kind)("what happened")
    assert exit_code(error) is code
    wrapped = RuntimeError("the query failed")
    wrapped.__cause__ = error
    assert exit_code(wrapped) is code
    text = f"[STREAM_FAILED] terminated: Traceback\n  File ...\ntwopc.errors.{kind}: {error}\n\n\tat java.lang"
    assert exit_code(Spark(text)) is code


def test_each_class_of_errors_has_its_code() -> None:
    found = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(EVERY_CODE) == found


def test_the_error_that_ended_a_query_counts_and_not_those_that_caused_it() -> None:
    cause, last = errors.TransactionLost("rolled back"), errors.RoundAborted("the round failed")
    chained = f"{cause}\n\nThe above exception was the direct cause of the following exception:\n\n{last}"
    assert exit_code(Spark(chained)) is ExitCode.NO_ANSWER


def test_an_error_that_another_one_replaced_is_found_as_in_a_traceback() -> None:
    def ended(hidden: bool) -> Exception:
        try:
            try:
                raise errors.Fenced("a newer driver goes on")
            except errors.Fenced:
                if hidden:
                    raise RuntimeError("handled") from None
                raise RuntimeError("Spark could not be stopped")  # noqa: B904  # such as in a 'finally'
        except RuntimeError as error:
            return error

    assert exit_code(ended(hidden=False)) is ExitCode.FENCED
    assert exit_code(ended(hidden=True)) is ExitCode.OTHER


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of errors came with Python 3.11")
def test_the_error_of_a_group_that_asks_for_an_operator_counts() -> None:
    kind = getattr(builtins, "ExceptionGroup")  # noqa: B009  # unknown to Python 3.10
    lost, silent = errors.TransactionLost("rolled back"), errors.Retriable("no answer")
    assert exit_code(kind("two queries", [ValueError("x"), silent])) is ExitCode.NO_ANSWER
    assert exit_code(kind("two queries", [silent, kind("nested", [lost])])) is ExitCode.OPERATOR_REQUIRED
    assert exit_code(kind("two queries", [ValueError("x")])) is ExitCode.OTHER


def test_an_error_of_a_backends_own_class_has_the_code_of_its_base() -> None:
    assert exit_code(OfABackend("gone")) is ExitCode.OPERATOR_REQUIRED
    assert exit_code(Spark(f"twopc_x.OfABackend: {OfABackend('gone')}\n")) is ExitCode.OPERATOR_REQUIRED


def test_any_other_error_may_be_restarted() -> None:
    assert exit_code(Spark("Job aborted due to stage failure")) is ExitCode.OTHER
    assert exit_code(Spark("twopc.errors.Refused: no")) is ExitCode.OTHER
    assert exit_code(OSError("the disk")) is ExitCode.NO_ANSWER
    assert exit_code(KeyboardInterrupt()) is ExitCode.INTERRUPTED


OF_A_FUNCTION = """[STREAM_FAILED] Query terminated with exception: Return Message: Traceback (most recent call last):
  File "py4j/clientserver.py", line 641, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
KeyError: 'amount'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "orders.py", line 7, in write
    amount = row["price"]
             ~~~^^^^^^^^^
KeyError: 'price'
 SQLSTATE: 39000

\tat java.lang"""

FAILED = "[STREAM_FAILED] Query\nTraceback\nx.OfABackend: {}\n SQLSTATE: 39000\n\tat java.lang"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (OfABackend("it is gone"), 4, "TransactionLost: it is gone; see python -m pydoc twopc.TransactionLost"),
        (Spark(FAILED.format(errors.Refused("No."))), 3, "Refused: No. See python -m pydoc twopc.Refused"),
        (ValueError("no\nnumber"), 70, "ValueError: no"),
        (Spark(OF_A_FUNCTION), 70, "KeyError: 'price'"),
    ],
)
def test_the_last_line_is_the_sentence_of_the_error(
    error: Exception, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), exiting():
        raise error
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"twopc: exit code {code}: ")
    assert last.endswith(f". {sentence}")


def test_the_traceback_is_printed_and_a_programs_own_exit_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, exiting():
        raise errors.Fenced("a newer driver goes on")
    assert ended.value.code == 5
    assert "twopc.errors.Fenced: a newer driver goes on; see" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended, exiting():
        raise SystemExit(12)
    assert ended.value.code == 12
    with exiting():
        pass
