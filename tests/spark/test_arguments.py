"""Arguments of another type, or with values that they do not take, are refused when they are given: without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import twopc
from twopc.errors import ConfigurationError
from twopc.spark import Output, foreach_batch

LOG = "log"


def sink() -> Any:
    return twopc.create_sink("files", {"path": "archive"})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("first_batch_id", "0", "must be a whole number, 0 or more, not of type str"),
        ("first_batch_id", True, "must be a whole number, 0 or more, not of type bool"),
        ("first_batch_id", -1, "must be a whole number, 0 or more;"),
        ("max_bad_records", 0, "must be a whole number, 1 or more;"),
        ("max_bad_records", 1.0, "must be a whole number, 1 or more, not of type float"),
        ("start_timeout_s", "60", "must be seconds, 0 or more, not of type str"),
        ("start_timeout_s", float("nan"), "must be seconds, 0 or more;"),
        ("otherwise", "drop", "must be 'count' or 'refuse';"),
        ("replay_copies", 5, "must be a folder, given as path or URL, or None, not of type int"),
        ("checkpoint", ["folder"], "must be a folder, given as path or URL, or None, not of type list"),
        ("offsets", "a secret", "must be a sink, or None, not of type str"),
        *((name, "false", "must be True or False, not of type str") for name in ("recompute", "coalesce")),
        *((name, None, "must be True or False, not of type NoneType") for name in ("collect", "uncapped")),
        ("sinks", {1: sink()}, "must have text as names"),
    ],
)
def test_an_argument_is_named_and_its_value_is_not(name: str, value: object, says: str) -> None:
    given: dict[str, Any] = {"sinks": sink(), "log": LOG, name: value}
    with pytest.raises(ConfigurationError, match=f"the argument '{name}' of foreach_batch {says}") as refused:
        foreach_batch(given.pop("sinks"), **given)
    assert refused.value.option == name
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sinks": "a secret"}, "a str is not a sink: create one with twopc.create_sink"),
        ({"sinks": {"archive": (1, ["id"])}}, "a tuple is not a sink"),
        ({"on_bad_record": "a topic"}, "a str is not a sink"),
        ({"on_bad_record": Output(sink(), where="true")}, "gets every bad record: leave out its 'where'"),
        (
            {"sinks": {"bad_records": sink()}, "on_bad_record": sink()},
            "'bad_records' is the name of 'on_bad_record' in the log",
        ),
        ({"recompute": True, "replay_copies": "copies"}, "give one of them"),
    ],
)
def test_arguments_that_are_no_sinks_or_exclude_each_other_are_refused(given: dict[str, Any], says: str) -> None:
    given = {"sinks": sink(), **given}
    with pytest.raises(ConfigurationError, match=says) as refused:
        foreach_batch(given.pop("sinks"), LOG, **given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("columns", [[], "id, name", [1], [""], lambda frame: frame, None])
def test_columns_of_an_output_are_expressions_in_a_list(columns: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'columns' of an Output must be SQL expressions in a list"):
        Output(sink(), columns)


@pytest.mark.parametrize("where", [True, " ", lambda frame: frame])
def test_the_condition_of_an_output_is_text(where: Any) -> None:
    with pytest.raises(ConfigurationError, match="'where' of an Output must be a condition in SQL"):
        Output(sink(), where=where)


@pytest.mark.variants
@pytest.mark.parametrize("options", [None, "path=/data"])
def test_options_of_a_sink_are_a_mapping(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="the options of the backend 'files' must be a mapping"):
        twopc.create_sink("files", options)


@pytest.mark.long
@pytest.mark.parametrize(("batch", "batch_id"), [(pd.DataFrame({"id": [1]}), 0), (None, 0)])
def test_what_is_no_batch_of_spark_is_refused_before_the_log_is_there(
    batch: Any, batch_id: int, tmp_path: Path
) -> None:
    write = foreach_batch(twopc.create_sink("files", {"path": str(tmp_path / "archive")}), log=tmp_path / "log")
    with pytest.raises(ConfigurationError, match=r"takes a frame of Spark and the batch's number"):
        write(batch, batch_id)
    assert not list(tmp_path.iterdir())
