"""Options of formats and of the layout: what they may be, and what they become."""

import pickle
from dataclasses import fields
from typing import Any

import pytest
from pyarrow import csv

from tests.support.pyarrow_versions import has_null_text
from twopc.errors import ConfigurationError
from twopc.options import names
from twopc_files import options as options_module
from twopc_files.delimited import Csv
from twopc_files.formats import Format
from twopc_files.json_lines import JsonLines
from twopc_files.layout import Layout
from twopc_files.lines import Text
from twopc_files.options import FORMAT_OPTIONS, LAYOUT_OPTIONS, parse_format, parse_layout
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Parquet("snappy")),
        ({"format": "Parquet", "compression": "ZSTD", "compression_level": "19"}, Parquet("zstd", 19)),
        ({"row_group_bytes": "1000000"}, Parquet(row_group_bytes=1_000_000)),
        ({"format": "json"}, JsonLines("none")),
        ({"format": "json", "compression": "gzip"}, JsonLines("gzip")),
        ({"format": "csv"}, Csv(header=True, delimiter=",", null_value="", compression="none")),
        pytest.param(
            {"format": "csv", "header": "False", "delimiter": "\\t", "null_value": "\\N"},
            Csv(header=False, delimiter="\t", null_value="\\N"),
            marks=has_null_text,
        ),
        ({"format": "csv", "header": False, "delimiter": ";"}, Csv(header=False, delimiter=";")),
        ({"format": "orc"}, Orc("zstd")),
        ({"format": "orc", "compression": "none", "stripe_bytes": 1}, Orc("none", 1)),
        ({"format": "text", "compression": "zstd"}, Text("zstd")),
    ],
    ids=repr,
)
def test_a_format_is_made_of_text(options: dict[str, Any], expected: Format) -> None:
    assert parse_format({"path": "/x", **options}) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected  # noqa: S301  # our own bytes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Layout()),
        ({"partition_by": "day, city"}, Layout(("day", "city"))),
        ({"partition_by": ["a,b"]}, Layout(("a,b",))),
        ({"max_records_per_file": "7", "max_bytes_per_file": 8}, Layout((), 7, 8)),
        ({"max_open_files": "1"}, Layout(max_open_files=1)),
    ],
    ids=repr,
)
def test_a_layout_is_made_of_text(options: dict[str, Any], expected: Layout) -> None:
    assert parse_layout({"path": "/x", **options}) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected  # noqa: S301  # our own bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "'format' of the file sink must be one of parquet, json, csv, orc, text"),
        ({"format": ""}, "'format' of the file sink must be one of"),
        ({"compression": "lzo"}, "'compression' of the file sink must be one of none, snappy, gzip"),
        ({"compression": ""}, "'compression' of the file sink must be one of"),
        ({"format": "json", "compression": "snappy"}, "'compression' of the file sink must be one of none, gzip, zstd"),
        ({"format": "orc", "compression": "gzip"}, "'compression' of the file sink must be one of none, snappy, zlib"),
        (
            {"compression_level": 3},
            "'compression_level' of the file sink is only for 'compression' = 'gzip' or .*, not 'snappy'",
        ),
        (
            {"compression": "gzip", "compression_level": "10"},
            "'compression_level' of the file sink must be a whole number from 1 to 9 with 'compression' = 'gzip'",
        ),
        (
            {"compression": "zstd", "compression_level": "high"},
            "'compression_level' of the file sink must be a whole number",
        ),
        ({"row_group_bytes": "0"}, "'row_group_bytes' of the file sink must be a whole number, 1 or more"),
        ({"row_group_bytes": "32 MiB"}, "'row_group_bytes' of the file sink must be a whole number"),
        ({"format": "csv", "header": "yes"}, "'header' of the file sink must be one of true, false"),
        ({"format": "csv", "delimiter": "||"}, "'delimiter' of the file sink must be one ASCII character"),
        ({"format": "csv", "delimiter": '"'}, "'delimiter' of the file sink must be one ASCII character"),
        ({"format": "csv", "delimiter": "\n"}, "'delimiter' of the file sink must be one ASCII character"),
        *(({"format": "csv", "delimiter": of_values}, "and no letter, digit") for of_values in "0eTZ-.: +"),
        ({"format": "csv", "delimiter": "§"}, "'delimiter' of the file sink must be one ASCII character"),
        ({"format": "csv", "null_value": '"'}, "'null_value' of the file sink must be text without quotes"),
        ({"format": "csv", "null_value": "a,b"}, "'null_value' of the file sink must be .* and the delimiter"),
        (
            {"format": "csv", "delimiter": "\\t", "null_value": "\t"},
            "'null_value' of the file sink must be .* the delimiter",
        ),
        ({"format": "text", "header": "true"}, "'header' of the file sink is only for 'format' = 'csv', not 'text'"),
        ({"header": "true"}, "'header' of the file sink is only for 'format' = 'csv', not 'parquet'"),
        (
            {"format": "json", "compression_level": "1"},
            "'compression_level' of the file sink is only for 'format' = 'parquet', not 'json'",
        ),
        (
            {"format": "parquet", "stripe_bytes": "1"},
            "'stripe_bytes' of the file sink is only for 'format' = 'orc', not",
        ),
        ({"partition_by": ""}, "'partition_by' of the file sink must be names of columns, each once, such as day,city"),
        ({"partition_by": "day,,city"}, "must be names of columns"),
        ({"partition_by": "day, day"}, "each once"),
        ({"partition_by": [1]}, "must be names of columns"),
        ({"partition_by": []}, "must be names of columns"),
        ({"max_records_per_file": "0"}, "'max_records_per_file' of the file sink must be a whole number, 1 or more"),
        ({"max_bytes_per_file": "1e9"}, "'max_bytes_per_file' of the file sink must be a whole number"),
        ({"max_open_files": None}, "'max_open_files' of the file sink must be a whole number"),
    ],
    ids=repr,
)
def test_what_an_option_cant_be_is_refused_with_what_it_may_be(options: dict[str, Any], message: str) -> None:
    parse = parse_layout if {*options} & {*names(LAYOUT_OPTIONS)} else parse_format
    with pytest.raises(ConfigurationError, match=message.replace("|", r"\|")):
        parse(options)


def test_each_option_that_is_read_is_documented_once() -> None:
    of_formats = {option.name for _, options in options_module._FORMATS.values() for option in options}
    assert sorted(names(FORMAT_OPTIONS)) == sorted({"format", *of_formats})
    assert sorted(names(LAYOUT_OPTIONS)) == sorted(field.name for field in fields(Layout))
    assert not {*names(FORMAT_OPTIONS)} & {*names(LAYOUT_OPTIONS)}


@pytest.mark.parametrize("kind", [Parquet, Csv, Orc, Layout])
def test_the_defaults_that_are_told_are_those_of_the_values(kind: type[Any]) -> None:
    told = {option.name: option.default_cell for option in (*FORMAT_OPTIONS, *LAYOUT_OPTIONS)}
    words: dict[Any, str] = {
        None: "",
        (): "",
        "": "empty",
        True: "`true`",
        ",": "`,`",
        32: "32",
        32 * 1024 * 1024: "32 MiB",
    }
    defaults = {field.name: words.get(field.default, f"`{field.default}`") for field in fields(kind)}
    compression = defaults.pop("compression", "")
    assert compression in told["compression"]
    assert defaults == {name: told[name].replace("the codec's", "") for name in defaults}


def test_a_text_for_null_is_refused_where_pyarrow_can_not_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = csv.WriteOptions

    def older(include_header: bool, delimiter: str) -> csv.WriteOptions:
        return real(include_header=include_header, delimiter=delimiter)

    monkeypatch.setattr(csv, "WriteOptions", older)
    assert parse_format({"path": "/x", "format": "csv"}) == Csv()
    with pytest.raises(ConfigurationError, match=r"'null_value' of the file sink needs pyarrow 26") as refused:
        parse_format({"path": "/x", "format": "csv", "null_value": "NULL"})
    assert refused.value.option == "null_value"
