"""The options of formats and layout: named and checked here. Their defaults, told in words, stand with the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from twopc.errors import ConfigurationError
from twopc.options import Option, names
from twopc_files import orc, parquet
from twopc_files.delimited import Csv
from twopc_files.formats import Format
from twopc_files.json_lines import JsonLines
from twopc_files.layout import Layout
from twopc_files.lines import EXTENSIONS
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet
from twopc_files.text import Text

Read: TypeAlias = "Callable[[Any], Any]"
"""Makes a value of what the user gave, which may be text. Raises ValueError that says what it may be."""


def _one_of(*choices: str) -> Read:
    def read(value: Any) -> str:
        chosen = str(value).strip().lower()
        if chosen not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return chosen

    return read


def _whole(least: int | None = None) -> Read:
    def read(value: Any) -> int:
        try:
            number = int(str(value).strip())
        except ValueError:
            number = None
        if number is None or (least is not None and number < least):
            raise ValueError("a whole number" if least is None else f"a whole number, {least} or more")
        return number

    return read


def _flag(value: Any) -> bool:
    return bool(_one_of("true", "false")(value) == "true")


def _delimiter(value: Any) -> str:
    text = "\t" if value == r"\t" else str(value)
    # What pyarrow's writer takes, less what no reader could tell from something else.
    if len(text) != 1 or not text.isascii() or text in '"\r\n\0':
        raise ValueError(r"one ASCII character (\t is a tab), and no quote or line break")
    return text


def _null_value(value: Any) -> str:
    if set(str(value)) & set('"\r\n'):
        raise ValueError("text without quotes and line breaks")
    return str(value)


def _columns(value: Any) -> tuple[str, ...]:
    columns = value if isinstance(value, list | tuple) else [name.strip() for name in str(value).split(",")]
    if not columns or not all(isinstance(name, str) and name for name in columns) or len({*columns}) < len(columns):
        raise ValueError("names of columns, each once, such as day,city")
    return tuple(columns)


def _listed(choices: Iterable[str]) -> str:
    return ", ".join(f"`{choice}`" for choice in choices)


DEFAULT_FORMAT = "parquet"

_LINES = {"compression": _one_of(*EXTENSIONS)}

_FORMATS: dict[str, tuple[Callable[..., Format], dict[str, Read]]] = {
    "parquet": (
        Parquet,
        {
            "compression": _one_of(*parquet.COMPRESSIONS),
            "compression_level": _whole(),
            "row_group_bytes": _whole(least=1),
        },
    ),
    "json": (JsonLines, _LINES),
    "csv": (Csv, {**_LINES, "header": _flag, "delimiter": _delimiter, "null_value": _null_value}),
    "orc": (Orc, {"compression": _one_of(*orc.COMPRESSIONS), "stripe_bytes": _whole(least=1)}),
    "text": (Text, _LINES),
}

_LAYOUT: dict[str, Read] = {
    "partition_by": _columns,
    "max_records_per_file": _whole(least=1),
    "max_bytes_per_file": _whole(least=1),
    "max_open_files": _whole(least=1),
}

FORMAT_OPTIONS = (
    Option(
        "format",
        _listed(_FORMATS),
        "`json` is one object a line, `text` one string column and one line a record",
        f"`{DEFAULT_FORMAT}`",
    ),
    Option(
        "compression",
        f"Parquet: {_listed(parquet.COMPRESSIONS)}. ORC: {_listed(orc.COMPRESSIONS)}. JSON, CSV, text:"
        f" {_listed(EXTENSIONS)}",
        "lines have it in their names, as `.json.gz` or `.json.zst`",
        "`snappy`; ORC `zstd`; JSON, CSV, text `none`",
    ),
    Option("compression_level", "whole number", "Parquet with `gzip`, `zstd`, `lz4`, `brotli`", "the codec's"),
    Option(
        "row_group_bytes",
        "bytes",
        "Parquet: of Arrow in a row group. A task holds so much in memory, and several times that while it encodes",
        "32 MiB",
    ),
    Option("header", "`true`, `false`", "CSV: whether the first line has the names of the columns", "`true`"),
    Option("delimiter", "one ASCII character", r"CSV; `\t` is a tab", "`,`"),
    Option("null_value", "text", "CSV: what stands for a null", "empty"),
    Option("stripe_bytes", "bytes", "ORC: encoded, in a stripe, which a task holds in memory", "32 MiB"),
)
LAYOUT_OPTIONS = (
    Option("partition_by", "columns", "as `day,city`, that become folders: `day=2024-05-01/city=Bern`"),
    Option("max_records_per_file", "whole number", "a file never has more"),
    Option("max_bytes_per_file", "bytes", "a file is finished after the record batch with which it has about so many"),
    Option(
        "max_open_files",
        "whole number",
        "at one time in one task, where `partition_by` is given; on S3 and other stores that buffer, no more than fit"
        " into 64 MiB",
        "32",
    ),
)


def parse_format(options: Mapping[str, Any]) -> Format:
    """The format that ``options`` ask for; options that no format has are left alone.

    Raises:
        ConfigurationError: a value that can't be, or an option of another format.
    """
    name = _read("format", _one_of(*_FORMATS), options.get("format", DEFAULT_FORMAT))
    make, readers = _FORMATS[name]
    for option in options:
        if option in names(FORMAT_OPTIONS) and option not in ("format", *readers):
            others = [other for other, (_, its) in _FORMATS.items() if option in its]
            raise ConfigurationError(f"the option {option!r} is for format {' and '.join(others)} only, not for {name}")
    return make(**_given(readers, options))


def parse_layout(options: Mapping[str, Any]) -> Layout:
    """The layout that ``options`` ask for; other options are left alone. Raises ConfigurationError."""
    return Layout(**_given(_LAYOUT, options))


def _given(readers: Mapping[str, Read], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _read(name, read, options[name]) for name, read in readers.items() if name in options}


def _read(name: str, read: Read, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigurationError(f"{name} {value!r} is not {error}") from None
