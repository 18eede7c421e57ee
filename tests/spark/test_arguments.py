"""Arguments of another type, or with values that they do not take, are refused when they are given: without Spark."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import twopc
from twopc.errors import ConfigurationError
from twopc.spark import BadRecords, Output, foreach_batch

LOG = "log"


def sink() -> Any:
    return twopc.create_sink("files", {"path": "archive"})


ON_LOSS = r"must be 'stop', 'recompute' or twopc.ReplayCopies\(folder\)"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("first_batch_id", "0", "must be a whole number, 0 or more, not of type str"),
        ("first_batch_id", True, "must be a whole number, 0 or more, not of type bool"),
        ("first_batch_id", -1, "must be a whole number, 0 or more;"),
        ("start_timeout_s", "60", "must be seconds, 0 or more, not of type str"),
        ("start_timeout_s", float("nan"), "must be seconds, 0 or more;"),
        ("unrouted", "drop", "must be 'count' or 'refuse';"),
        ("on_loss", "s3://a secret/copies", f"{ON_LOSS};"),
        ("on_loss", True, f"{ON_LOSS}, not of type bool"),
        ("small_batches", "few", "must be 'driver', 'few-tasks' or 'all-tasks';"),
        ("small_batches", None, "must be 'driver', 'few-tasks' or 'all-tasks', not of type NoneType"),
        ("checkpoint", ["folder"], "must be a folder, given as path or URL, or None, not of type list"),
        ("offsets", "a secret", "must be a sink, or None, not of type str"),
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
        ({"sinks": "a secret"}, "an object of class str is not a sink: create one with twopc.create_sink"),
        ({"sinks": {"archive": (1, ["id"])}}, "an object of class tuple is not a sink"),
        ({"bad_records": "a secret"}, "an object of class str is not a sink"),
        ({"bad_records": Output(sink())}, "an object of class Output is not a sink"),
        ({"sinks": {"bad_records": sink()}, "bad_records": sink()}, "'bad_records' is the name of a sink of twopc's"),
        ({"sinks": {"offsets": sink()}, "offsets": sink()}, "'offsets' is the name of a sink of twopc's"),
    ],
)
def test_arguments_that_are_no_sinks_or_share_a_name_are_refused(given: dict[str, Any], says: str) -> None:
    given = {"sinks": sink(), **given}
    with pytest.raises(ConfigurationError, match=says) as refused:
        foreach_batch(given.pop("sinks"), LOG, **given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("owner", [Output, BadRecords])
@pytest.mark.parametrize("columns", [[], "id, name", [1], [""], lambda frame: frame, None])
def test_columns_are_expressions_in_a_list(owner: Any, columns: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'columns' of .*(Output|BadRecords) must be expressions in a list"):
        owner(sink(), columns)


@pytest.mark.parametrize("where", [True, " ", lambda frame: frame])
def test_the_condition_of_an_output_is_text_or_a_column(where: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'where' of an Output must be a condition as text in SQL.*Column"):
        Output(sink(), where=where)


@pytest.mark.parametrize("limit", [0, 1.0, "5", True])
def test_the_limit_of_bad_records_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="'limit' of BadRecords must be a whole number, 1 or more"):
        BadRecords(sink(), limit=limit)


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


def test_a_writer_of_which_another_querys_log_can_not_be_opened_does_not_take_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OSError("away")

    writer = foreach_batch(sink(), log=str(tmp_path / "log"))
    first = writer._coordinator_of("first")
    with monkeypatch.context() as patched:
        patched.setattr(type(writer._settings), "coordinator", away)
        with pytest.raises(OSError, match="away"):
            writer._coordinator_of("second")
    assert writer._coordinator_of("second") is not first
