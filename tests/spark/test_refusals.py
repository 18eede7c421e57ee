"""What a task refuses is raised on the driver as what it is: with its class, its words and its attributes."""

from __future__ import annotations

import traceback
import venv
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from twopc.errors import ConfigurationError, RecordRefused, Refused, TwoPhaseCommitError
from twopc.spark import foreach_batch, refusals

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.spark.conftest import Pipeline, Topic


class OfAnotherDistribution(RecordRefused):
    """An error that the driver may not be able to import."""


class Spark(Exception):
    """As PySpark raises it: with the text of the task's traceback, and text of its own around."""


def on_driver(refused: BaseException) -> BaseException:
    """What the driver makes of an error that a task raised."""
    try:
        with refusals.in_task():
            raise refused
    except Exception:  # noqa: BLE001  # whatever it is
        told = f"Job aborted:\n{traceback.format_exc()}\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    with pytest.raises(Exception, match=r".*") as raised, refusals.of_tasks():
        raise Spark(told)
    return raised.value


@pytest.mark.parametrize(
    "refused",
    [
        RecordRefused(
            "it is\nlarge: 'ä'\\", sink="orders", task=3, record=7, topic="a: b\n", partition=0, column="key"
        ),
        RecordRefused("it is large"),
        ConfigurationError("topic 'x' does not exist"),
        Refused("no"),
        Refused(),
    ],
    ids=str,
)
def test_a_refusal_arrives_whole(refused: Refused) -> None:
    arrived = on_driver(refused)
    assert (type(arrived), str(arrived), vars(arrived)) == (type(refused), str(refused), vars(refused))


def test_a_refusal_of_another_distributions_class_arrives_as_the_class_that_the_core_knows() -> None:
    arrived = on_driver(OfAnotherDistribution("no", record=1))
    assert type(arrived) is RecordRefused
    assert arrived.message == "record 1: no"


def test_any_other_error_stays_what_spark_raised() -> None:
    assert type(on_driver(OSError("disk"))) is Spark
    assert type(on_driver(TwoPhaseCommitError("twopc.errors.Refused: no"))) is Spark


def spark_reports(*lines: str) -> BaseException:
    """What the driver makes of a task that Spark's own worker ended, before a line of ours ran in it."""
    with pytest.raises(Exception, match=r".*") as raised, refusals.of_tasks():
        raise Spark("\n".join(["Traceback (most recent call last):", '  File "worker.py", line 1, in main', *lines]))
    return raised.value


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'pyarrow'",  # 4.0 to 4.2
        "ModuleNotFoundError: No module named 'pandas.core'",
        "ImportError: PyArrow >= 11.0.0 must be installed; however, it was not found.",
        "a.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
        "a.PySparkImportError: [UNSUPPORTED_PACKAGE_VERSION] Pandas >= 2.2.0 must be installed; however, yours is 1.5.",
    ],
)
def test_an_executor_without_what_spark_needs_is_refused_with_what_to_install(line: str) -> None:
    arrived = spark_reports(line, "", "\tat org.apache.spark.api.python.BasePythonRunner")
    assert type(arrived) is ConfigurationError
    assert str(arrived).startswith("the Python of an executor can't run the batch's tasks: " + line.partition(": ")[2])
    assert "install twopc-core[spark] and the distributions of the sinks into that Python on every" in str(arrived)
    assert "'Lost task'" in str(arrived)  # where the host is


def test_the_host_is_named_where_spark_names_it() -> None:
    lost = "Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.7 executor 3): org.apache.spark.api.python.PythonException:"
    arrived = spark_reports(lost, "ModuleNotFoundError: No module named 'pyarrow'")
    assert str(arrived).startswith("the Python of the executor at 10.0.0.7 can't run")


def test_an_executor_with_another_version_of_python_is_refused_in_sparks_words() -> None:
    arrived = spark_reports(
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
        " version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
        "Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set.",
    )
    assert type(arrived) is ConfigurationError
    assert "3.12 than that in driver: 3.11" in str(arrived)


def test_another_module_that_is_missing_is_no_fault_of_the_executors_python() -> None:
    assert type(spark_reports("ModuleNotFoundError: No module named 'pandas_of_mine'")) is Spark


@pytest.mark.spark
def test_a_batch_on_an_executor_without_pyarrow_is_not_said_to_be_run_again(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr(pipeline.spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    pipeline.add_batch([{"id": 1, "name": "a"}])
    with pytest.raises(StreamingQueryException) as ended:
        pipeline.run(foreach_batch(pipeline.files(), log=str(pipeline.log)))
    assert "ConfigurationError: the Python of " in str(ended.value)
    assert "No module named 'pyarrow'" in str(ended.value)
    assert "RoundAborted" not in str(ended.value)


@pytest.mark.spark
@pytest.mark.kafka
def test_a_record_that_can_not_be_written_is_named_to_who_runs_the_query(pipeline: Pipeline, topic: Topic) -> None:
    raised: list[RecordRefused] = []
    columns = ["name AS value", "CAST(IF(id = 3, -1, id) AS TIMESTAMP) AS timestamp"]
    write = foreach_batch({"orders": (topic.sink(), columns)}, log=str(pipeline.log))

    def noted(batch: DataFrame, number: int) -> None:
        try:
            write(batch.coalesce(1), number)
        except RecordRefused as refused:
            raised.append(refused)
            raise

    pipeline.add_batch([{"id": number, "name": "hunter2"} for number in range(1, 6)])
    with pytest.raises(StreamingQueryException, match="RecordRefused: sink 'orders', task 0, record 2"):
        pipeline.run(noted)
    [refused] = raised
    assert (refused.sink, refused.task, refused.record, refused.column) == ("orders", 0, 2, "timestamp")
    assert "before 1970" in str(refused)
    assert "hunter2" not in str(refused)
    assert pipeline.entries("decide") == []
    assert topic.ongoing() == []
