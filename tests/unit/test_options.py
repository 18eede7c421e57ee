"""All backends refuse options in the same words, and no word of a value."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import site_script
from twopc.errors import ConfigurationError
from twopc.options import (
    Kind,
    Option,
    choice,
    choices,
    columns,
    flag,
    parse,
    place,
    refuse_unknown,
    seconds,
    text,
    whole_number,
)
from twopc.spark.data_source import options as source_options
from twopc_delta import DeltaSink
from twopc_delta import options as delta_options
from twopc_files import FileSink
from twopc_files import options as files_options
from twopc_iceberg import IcebergSink
from twopc_iceberg import options as iceberg_options
from twopc_kafka import KafkaSink
from twopc_kafka import options as kafka_options
from twopc_kafka.offsets_sink import KafkaProgressSink
from twopc_mysql import MysqlSink
from twopc_mysql import options as mysql_options
from twopc_postgres import PostgresSink
from twopc_postgres import options as postgres_options
from twopc_pravega import PravegaSink
from twopc_pravega import options as pravega_options
from twopc_sql import SqlSink
from twopc_sql import options as sql_options

SECRET = "hunter2-is-the-password"  # noqa: S105  # what must not be seen anywhere


@dataclass(frozen=True)
class Backend:
    """A backend.

    Attributes:
        owner: as errors name it.
        make: checks options.
        good: enough options.
        options: those that are declared.
        takes_any: the options that take any text, so that a secret is a right value.
    """

    owner: str
    make: Callable[[Mapping[str, Any]], object]
    good: Mapping[str, str]
    options: Iterable[Option]
    takes_any: str

    def refusal(self, option: str, options: Mapping[str, Any]) -> str:
        """The message, of an error that names ``option``."""
        with pytest.raises(ConfigurationError) as refused:
            self.make(options)
        assert refused.value.__cause__ is refused.value.__context__ is None  # either could repeat a value
        assert refused.value.option
        assert refused.value.option.lower() == option  # Spark gives names in lower case
        return refused.value.message


def backends(checkpoint: Path) -> list[Backend]:
    query = {"sink": "kafka", "checkpointlocation": f"{checkpoint}"}
    return [
        Backend(
            "the file sink", FileSink, {"path": "/data/orders"}, files_options.OPTIONS, "path partition_by null_value"
        ),
        Backend(
            "the postgres sink",
            PostgresSink,
            {"conninfo": "postgresql://writer@db.example/sales", "table": "orders"},
            postgres_options.OPTIONS,
            "table upsert_by",
        ),
        Backend(
            "the iceberg sink",
            IcebergSink,
            {"table": "sales.orders"},
            iceberg_options.OPTIONS,
            "catalog branch upsert_by",
        ),
        Backend("the delta sink", DeltaSink, {"path": "/data/orders"}, delta_options.OPTIONS, "path upsert_by"),
        Backend(
            "the mysql sink",
            MysqlSink,
            {"url": "mysql://writer@db.example/sales", "table": "orders"},
            mysql_options.OPTIONS,
            "table upsert_by",
        ),
        Backend(
            "the pravega sink",
            PravegaSink,
            {"controller": "tcp://pravega.example:9090", "stream": "sales/orders"},
            pravega_options.OPTIONS,
            "username password ca_file",
        ),
        Backend(
            "the sql sink",
            SqlSink,
            {"url": "sqlite:////data/sales.db", "table": "orders"},
            sql_options.OPTIONS,
            "table upsert_by",
        ),
        Backend(
            "the kafka sink",
            KafkaSink,
            {"bootstrap.servers": "broker:9092", "topic": "orders"},
            kafka_options.OPTIONS,
            "bootstrap.servers topic transactional.id.prefix batch.markers",
        ),
        Backend(
            "format('twopc')",
            source_options.stream_target,
            query,
            [
                Option(each.name.lower(), each.kind, each.meaning)
                for each in source_options.OPTIONS
                if each.name != "batch_id"
            ],
            "sink checkpointlocation log replay_copies",
        ),
    ]


BY_NAME = ["files", "postgres", "iceberg", "delta", "mysql", "pravega", "sql", "kafka", "format"]


@pytest.fixture(params=range(len(BY_NAME)), ids=BY_NAME)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    (tmp_path / "metadata").write_text(json.dumps({"id": "a-query"}))
    found: Backend = backends(tmp_path)[request.param]
    return found


def test_options_that_are_right_are_taken(backend: Backend) -> None:
    backend.make(backend.good)


def test_a_needed_option_that_is_missing_or_empty_is_named_with_what_it_must_be(backend: Backend) -> None:
    for name in [name for name in backend.good if name != "topic"]:
        others = {other: value for other, value in backend.good.items() if other != name}
        for given in (others, {**others, name: ""}, {**others, name: " "}):
            message = backend.refusal(name, given).lower()
            assert message.startswith(f"{backend.owner} needs the option {name!r}: ")
            assert message.endswith(".")


def test_a_misspelt_needed_option_gets_the_nearest_one(backend: Backend) -> None:
    for name in [name for name in backend.good if name != "topic"]:
        others = {other: value for other, value in backend.good.items() if other != name}
        message = backend.refusal(name[:-1], {**others, name[:-1]: SECRET}).lower()
        assert message.startswith(f"{backend.owner} has no option {name[:-1]!r}. did you mean {name!r}? its options: ")
        assert SECRET not in message


def test_a_misspelt_option_gets_the_nearest_one(backend: Backend) -> None:
    if backend.owner == "format('twopc')":
        return  # it passes the option on to its sink, which refuses it in these words
    for option in backend.options:
        if option.name not in backend.good:
            misspelt = option.name[1:]
            message = backend.refusal(misspelt, {**backend.good, misspelt: SECRET})
            start = f"{backend.owner} has no option {misspelt!r}. Did you mean {option.name!r}? Its options: "
            assert message.startswith(start)
            assert SECRET not in message


def test_a_wrong_value_is_refused_by_the_options_name_and_never_repeated(backend: Backend) -> None:
    for option in backend.options:
        if option.name not in [*backend.takes_any.split(), "row_group_bytes"]:
            options = {**backend.good, **_that_goes_with(option.name), option.name: SECRET}
            message = backend.refusal(option.name, options)
            assert f"the option {option.name!r} of {backend.owner} must be " in message
            assert SECRET not in message


def _that_goes_with(name: str) -> dict[str, str]:
    if name in ("header", "delimiter"):
        return {"format": "csv"}
    return {"stripe_bytes": {"format": "orc"}, "partitioner": {"writer": "librdkafka"}}.get(name, {})


@pytest.mark.parametrize("wrong", [{"group.id": ""}, {}])
def test_the_offsets_sink_needs_its_group(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^the kafka-offsets sink needs the option 'group\.id': a consumer"):
        KafkaProgressSink({"bootstrap.servers": "broker:9092", **wrong})


@pytest.mark.parametrize("value", [[["spark"]], "spark,spark", ["spark", 1], "sparc", {"spark": 1}, 7])
def test_logs_of_complete_batches_that_can_not_be_are_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'batch_logs' of the file sink must be some of spark, manifest"):
        FileSink({"path": "/x", "batch_logs": value})


# Kinds. -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (text(), " a b ", "a b"),
        (place(), Path("/data"), "/data"),
        (whole_number(), " -7 ", -7),
        (whole_number(1, 3), 3, 3),
        (seconds(0.5, 2), "0.5", 0.5),
        (choice("a", "b"), " B ", "b"),
        (flag(), True, True),
        (flag(), "False", False),
        (columns(), "day, city", ("day", "city")),
        (columns(), ["a,b"], ("a,b",)),
        (choices("a", "b"), "b,a", ("b", "a")),
        (choices("a", "b"), "", ()),
    ],
)
def test_a_value_may_be_text(kind: Kind, given: Any, value: Any) -> None:
    assert parse("the audit sink", [Option("x", kind, "")], {"x": given}) == {"x": value}


@pytest.mark.parametrize(
    ("kind", "given", "must_be"),
    [
        (text(), "  ", "text that is not empty"),
        (text(), 7, "text that is not empty"),
        (text(), None, "text that is not empty"),
        (place(), b"/data", "a path or URL, such as"),
        *(
            (whole_number(), wrong, "a whole number")
            for wrong in ("1.5", "1e3", "1_000", "", True, 1.5, None, "\uff11")
        ),
        (whole_number(least=1), "0", "a whole number, 1 or more"),
        (whole_number(most=9), 10, "a whole number, 9 or less"),
        (whole_number(1, 9), 10, "a whole number from 1 to 9"),
        *((seconds(0.5, 2), wrong, "seconds from 0.5 to 2") for wrong in ("0", "nan", "inf", "soon", None)),
        (choice("a", "b"), "", "one of a, b"),
        (flag(), "yes", "one of true, false"),
        *((columns(), wrong, "names of columns, each once") for wrong in ("", "a,,b", "a,a", [], [1], 7, None)),
        (choices("a", "b"), "a,c", "some of a, b, each once, such as a,b"),
    ],
)
def test_a_value_that_can_not_be_is_refused(kind: Kind, given: Any, must_be: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse("the audit sink", [Option("x", kind, "")], {"x": given})
    assert str(refused.value).startswith(f"the option 'x' of the audit sink must be {must_be}")


OPTIONS = (
    Option("path", place(), "the folder", needed=True),
    Option("mode", choice("append", "upsert"), "what a record does to an older one", default="append"),
    Option("rows_per_file", whole_number(least=1), "a file never has more", default=1000),
    Option("level", whole_number(), "", default_text="the codec's"),
)


def test_a_default_is_the_value_of_what_is_not_given() -> None:
    assert parse("the audit sink", OPTIONS, {"path": "/x"}) == {"path": "/x", "mode": "append", "rows_per_file": 1000}


def test_a_name_in_another_case_is_offered_too() -> None:
    with pytest.raises(ConfigurationError, match=r"no option 'Path'. Did you mean 'path'\? Its options: path, mode, "):
        refuse_unknown("the audit sink", {"Path": "/x"}, OPTIONS)


def test_the_documentation_is_made_from_the_declaration() -> None:
    assert site_script("tables").options_table(OPTIONS).splitlines()[2:] == [
        "| `path` | path or URL | | needed: the folder |",
        "| `mode` | `append`, `upsert` | `append` | what a record does to an older one |",
        "| `rows_per_file` | whole number | 1000 | a file never has more |",
        "| `level` | whole number | the codec's | |",
    ]
