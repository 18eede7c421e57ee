"""Of what fails a job, outages may last, and lost processes may come for an hour."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tests.spark.test_task_errors import Spark
from tests.support.memory_log import MemoryLog
from tests.support.raising import raising
from twopc import Coordinator, create_sink
from twopc.errors import RepeatedFailure, Retriable, RoundAborted, SchemaMismatch
from twopc.failures import is_outage, passes
from twopc.spark import exit_code, foreach_batch
from twopc.spark.engine import ClassicEngine
from twopc.spark.stopping import passing, passing_failures
from twopc.spark.tuning import LimitedByRows, Plan
from twopc.testing import MemorySink, MemoryTarget

LOST = "Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.1 executor 2): "


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (RoundAborted, f"{LOST}ExecutorLostFailure (executor 2 exited caused by a running task) Reason: worker lost"),
        (RoundAborted, f"{LOST}FetchFailed(BlockManagerId(1, 10.0.0.1, 7337, None), shuffleId=0, mapId=3, reduceId=1)"),
        (RoundAborted, f"{LOST}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        (RoundAborted, "Caused by: java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 1200 ms"),
        (RoundAborted, f"twopc.errors.RoundAborted: the server was shut down. {RoundAborted('').link}"),
        (RoundAborted, "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down"),
        (Retriable, "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
        (Retriable, "Caused by: java.net.ConnectException: Connection refused"),
        (Retriable, "Caused by: org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired"),
        (Retriable, "ConnectionResetError: [Errno 104] Connection reset by peer"),
        (Retriable, "OSError: [Errno 28] No space left on device: '/tmp/spool'"),
        (Retriable, f"a.Busy: it restarts; {Retriable('').link}"),
    ],
)
def test_a_lost_process_is_counted_and_an_outage_is_not(kind: type[Exception], line: str) -> None:
    text = f"Job aborted due to stage failure: Traceback (most recent call last):\n{line}\n\n\tat org.apache.spark.A\n"
    with pytest.raises(kind) as raised, passing_failures(lambda: False):
        raise Spark(text)
    assert text in str(raised.value)
    round = RoundAborted("the round failed")
    round.__cause__ = raised.value
    assert passes(round)
    assert is_outage(round) == (kind is Retriable)


def test_a_session_that_is_stopped_amid_a_job_does_not_hide_how_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(sparkContext=Mock(**{"getLocalProperty.return_value": None}))
    ended = Spark("Job 3 cancelled because SparkContext was shut down")

    def job(_: object) -> None:
        session.sparkContext.setLocalProperty = raising(AttributeError("'NoneType' object has no attribute"))
        raise ended

    limited = LimitedByRows()
    monkeypatch.setattr(limited, "_with_check", lambda frame, _: frame)
    frame: Any = SimpleNamespace(sparkSession=session)
    with pytest.raises(RoundAborted), passing_failures(lambda: False), ClassicEngine(session).describe("a job"):
        limited.run(job, frame, Plan(repeatable=True), in_structs=False)


def test_an_error_of_a_session_that_this_process_has_stopped_is_no_defect_of_the_query() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(RoundAborted, match="setCallSite"), passing_failures(ClassicEngine(session).is_stopped):
        raise AttributeError("'NoneType' object has no attribute 'setCallSite'")
    assert passing("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.") is RoundAborted


def test_a_jvm_that_ends_amid_a_call_is_a_lost_process() -> None:
    assert passing("An error occurred while calling o85.collectToPython") is RoundAborted
    assert passing("An error occurred while calling o85.collectToPython.\n: java.lang.ArithmeticException") is None


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: row 7: no plan for 'x'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/rates.csv'",
        "OSError: [Errno 99999] what is this",
        "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero",
        f"twopc.errors.SchemaMismatch: no column 'x'. {SchemaMismatch('').link}",
        "ValueError: a TimeoutError: is only quoted",
    ],
)
def test_nothing_else_passes(line: str) -> None:
    assert passing(f"Job aborted due to stage failure:\n{line}\n\tat org.apache.spark.A\n") is None
    with pytest.raises(Spark), passing_failures(lambda: False):
        raise Spark(line)


OUTAGE = "ConnectionRefusedError: [Errno 111] Connection refused"
ABORTED = f"twopc.errors.RoundAborted: the round failed. {RoundAborted('').link}"
DEFECT = "ValueError: no plan"


CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"


def in_task(python: str) -> str:
    task = f"org.apache.spark.api.python.PythonException: {python}\n\n\tat org.apache.spark.A.b(A.java:1)\n"
    return f"Job aborted due to stage failure: {task}\nDriver stacktrace:\n\tat org.apache.spark.B\nCaused by: {task}"


@pytest.mark.parametrize(
    ("chain", "connector", "kind"),
    [
        ([DEFECT, "KeyError: 'x'"], CONTEXT, None),
        ([OUTAGE, DEFECT], CONTEXT, RoundAborted),
        ([DEFECT, OUTAGE], CAUSE, Retriable),
        ([DEFECT, OUTAGE], CONTEXT, RoundAborted),
        ([OUTAGE, OUTAGE], CONTEXT, Retriable),
        ([OUTAGE, ABORTED], CAUSE, Retriable),
        ([f"Busy: no; {Retriable('').link}", ABORTED], CAUSE, Retriable),
        ([DEFECT, ABORTED], CAUSE, RoundAborted),
        ([OUTAGE, DEFECT, ABORTED], CAUSE, RoundAborted),
        (["EOFError"], CAUSE, None),
        ([DEFECT, f"twopc.errors.Retriable: away. {Retriable('').link}"], CONTEXT, Retriable),
        ([OUTAGE, "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"], CONTEXT, Retriable),
        ([OUTAGE, "requests.exceptions.ConnectionError: HTTPConnectionPool(host='a')"], CONTEXT, Retriable),
    ],
)
def test_of_a_chain_in_python_what_was_raised_decides_unless_it_came_amid_a_cleanup(
    chain: list[str], connector: str, kind: type[Exception] | None
) -> None:
    header = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    a()\n'
    text = in_task(f"\n\n{connector}:\n\n".join(header + error for error in chain))
    assert passing(text) is kind
    assert passing(f"{text}Caused by: java.net.ConnectException: refused\n\tat java.A\n") is (kind or RoundAborted)


@pytest.mark.parametrize(("line", "kind"), [(OUTAGE, RoundAborted), (ABORTED, RoundAborted), (DEFECT, None)])
def test_an_outage_in_a_group_of_errors_is_counted_by_minutes(line: str, kind: type[Exception] | None) -> None:
    lines = [
        *("  + Exception Group Traceback (most recent call last):", '  |   File "a.py", line 1, in <module>'),
        *("  | ExceptionGroup: tasks failed (2 sub-exceptions)", "  +-+---------------- 1 ----------------"),
        *("    | Traceback (most recent call last):", '    |   File "a.py", line 2, in <module>', f"    | {line}"),
        *("    +---------------- 2 ----------------", f"    | {DEFECT}", "    +------------------------------------"),
    ]
    assert passing(in_task("\n".join(lines))) is kind


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        (["a.Failed: x", "java.net.ConnectException: Connection refused"], Retriable),
        (["java.net.ConnectException: Connection refused"], Retriable),
        (["java.net.ConnectException: no", "java.io.IOException: closed by peer"], RoundAborted),
        (["a.Refused: x\n\tat a.A\n\tSuppressed: java.net.SocketException: Broken pipe"], RoundAborted),
        (["a.Refused: x", "a.Denied: y"], None),
    ],
)
def test_of_a_chain_in_java_the_cause_decides(chain: list[str], kind: type[Exception] | None) -> None:
    stacks = [f"{error}\n\tat a.A.b(A.java:1)\n\t... 3 more\n" for error in chain]
    assert passing(f"Job aborted due to stage failure: {LOST}{'Caused by: '.join(stacks)}") is kind


def test_a_plan_that_fails_at_each_start_calls_an_operator() -> None:
    log = MemoryLog()
    with Coordinator({"out": MemorySink(MemoryTarget())}, log, owner="q", rest_interval_s=None) as coordinator:
        coordinator.recover()
    engine: Any = SimpleNamespace(query_id="q", look=raising(ValueError("no plan")), is_stopped=lambda: False)
    batch: Any = None
    for kind in (ValueError, ValueError, RepeatedFailure):
        with pytest.raises(kind, match="no plan"):
            foreach_batch({"out": MemorySink(MemoryTarget())}, log)._write(engine, batch, 0)


@pytest.mark.long
def test_a_query_whose_own_code_fails_at_every_start_ends_with_the_code_for_an_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text('{"value": "a"}\n')

    @udf("string")
    def planned(value: str) -> str:
        raise ValueError(f"no plan for {value!r}")

    def start(is_corrected: bool = False) -> BaseException | None:
        rows = spark.readStream.schema("value string").json(str(tmp_path / "source"))
        sink = create_sink("files", {"path": str(tmp_path / "out"), "format": "json"})
        written = (rows if is_corrected else rows.select(planned("value").alias("value"))).writeStream.foreachBatch(
            foreach_batch({"out": sink}, str(tmp_path / "log"))
        )
        query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001  # whatever Spark makes of it
            return error
        return None

    ends = [start() for _ in range(4)]
    assert [exit_code(end) for end in ends if end] == [6, 6, 4, 4]
    assert RepeatedFailure.__name__ in str(ends[-1])
    assert "no plan for 'a'" in str(ends[-1])
    assert start(is_corrected=True) is None
    assert len(list((tmp_path / "out").glob("*.json"))) == 1
