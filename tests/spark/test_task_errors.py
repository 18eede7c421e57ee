"""An error that a task raises arrives on the driver with its class, message and attributes."""

import socket
import subprocess
import sys
import traceback
import venv
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import twopc
from tests.spark.conftest import Pipeline, Topic
from twopc.errors import ConfigurationError, RecordRefused, Refused, TwoPhaseCommitError
from twopc.spark import Output
from twopc.spark.output import Rows
from twopc.spark.task import PickledSinks, Task, portable, refusals_from_tasks, refusals_to_driver
from twopc.transactional_ids import Round


class OfAnotherDistribution(RecordRefused):
    """An error that the driver may not be able to import."""


class Spark(Exception):
    """PySpark's error: the text of the task's traceback, within text of its own."""


def on_driver(refused: BaseException) -> BaseException:
    """Return the driver's error after a task raised ``refused``."""
    try:
        with refusals_to_driver():
            raise refused
    except Exception:  # noqa: BLE001  # whatever it is
        told = f"Job aborted:\n{traceback.format_exc()}\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    with pytest.raises(Exception, match=r".*") as raised, refusals_from_tasks():
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
    """Return the driver's error after Spark's own worker ended a task, before our code ran in it."""
    with pytest.raises(Exception, match=r".*") as raised, refusals_from_tasks():
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


def test_the_host_is_named_if_spark_names_it() -> None:
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


def test_another_missing_module_stays_what_spark_raised() -> None:
    assert type(spark_reports("ModuleNotFoundError: No module named 'pandas_of_mine'")) is Spark


@pytest.mark.long
def test_a_batch_on_an_executor_without_pyarrow_is_no_aborted_round(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr(pipeline.spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    pipeline.add_batch([{"id": 1, "name": "a"}])
    with pytest.raises(StreamingQueryException) as ended:
        pipeline.run(pipeline.writer())
    assert "ConfigurationError: the Python of " in str(ended.value)
    assert "No module named 'pyarrow'" in str(ended.value)
    assert "RoundAborted" not in str(ended.value)


@pytest.mark.long
def test_a_record_that_can_not_be_written_is_located_in_the_querys_error(pipeline: Pipeline, topic: Topic) -> None:
    raised: list[RecordRefused] = []
    columns = ["name AS value", "CAST(IF(id = 3, -1, id) AS TIMESTAMP) AS timestamp"]
    write = pipeline.writer({"orders": Output(topic.sink(), columns)})

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


# A task where this package itself is missing. ---------------------------------------------------------------------


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """The packages of an executor's Python: pyspark and nothing else."""
    for module in (pyspark, py4j):
        (tmp_path / module.__name__).symlink_to(Path(module.__file__ or "").parent)
    return tmp_path


def refused_at(executor: Path) -> str:
    """Return the driver's message about a task that ran in this Python, after the names of the Python and the host."""
    code = "from pyspark import cloudpickle; import sys; list(cloudpickle.loads(sys.stdin.buffer.read())([]))"
    task = Task(PickledSinks({}), Rows((), in_structs=False), Round(1, 0))
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=cloudpickle.dumps(portable(task)),  # type: ignore[no-untyped-call]
        capture_output=True,
        cwd=executor,
        env={"PYTHONPATH": str(executor)},
        check=False,
    )
    with pytest.raises(ConfigurationError) as refused, refusals_from_tasks():
        raise Spark(ended.stderr.decode())
    where = f"the Python {sys.executable} of the executor at {socket.gethostname()} has no package 'twopc'"
    assert str(refused.value).startswith(where)
    assert "on every executor, as on the driver." in str(refused.value)
    return str(refused.value).removeprefix(where)


def add_foreign_twopc(executor: Path, *files: str) -> None:
    """Add the distribution that ``pip install twopc`` installs."""
    info = executor / "twopc-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twopc\nVersion: 1.2\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (executor / file).parent.mkdir(exist_ok=True)
        (executor / file).write_text("")


def test_an_executor_without_twopc_is_named_with_its_host_and_what_to_install(executor: Path) -> None:
    assert refused_at(executor).startswith(": install twopc-core and the distributions of the sinks")


def test_another_projects_twopc_on_an_executor_is_named_as_the_one_to_remove(executor: Path) -> None:
    add_foreign_twopc(executor, "twopc/__init__.py", "twopc/stars.py")
    refused = refused_at(executor)
    assert refused.startswith(" of this project, but the distribution 'twopc' 1.2 of another: run `pip uninstall twopc")
    assert "No module named 'twopc.spark'" in refused


def test_two_projects_twopc_in_one_folder_are_named_as_those_to_remove(executor: Path) -> None:
    (executor / "twopc").symlink_to(Path(twopc.__file__).parent)
    add_foreign_twopc(executor)
    (executor / "twopc-1.2.dist-info" / "RECORD").write_text("twopc/__init__.py,,\n")
    assert "another: run `pip uninstall twopc twopc-core`" in refused_at(executor)


def test_the_reason_why_an_executor_cannot_load_twopc_is_named(executor: Path) -> None:
    (executor / "twopc").symlink_to(Path(twopc.__file__).parent)
    refused = refused_at(executor)
    assert refused.startswith(" that can be loaded: install twopc-core")
    assert "No module named" in refused
