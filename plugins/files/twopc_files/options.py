"""The options of the file sink and their checks. The format classes and ``Layout`` have the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.errors import ConfigurationError
from twopc.options import (
    Kind,
    Option,
    choice,
    choices,
    columns,
    flag,
    listed,
    mapping,
    names,
    parse,
    place,
    refuse_unknown,
    text,
    whole_number,
    wrong_value,
)
from twopc_files import orc, parquet
from twopc_files.delimited import Csv
from twopc_files.formats import Format
from twopc_files.json_lines import JsonLines
from twopc_files.layout import Layout
from twopc_files.lines import EXTENSIONS, Text
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet
from twopc_files.stores.by_protocol import store_at

if TYPE_CHECKING:
    from twopc_files.stores.store import Store

OWNER = "the file sink"


def _delimiter(given: Any) -> str:
    delimiter = "\t" if given == r"\t" else str(given)
    # Numbers, booleans, dates and times are not quoted, so the delimiter can't be one of their characters.
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n\0 +-.:':
        raise ValueError
    return delimiter


def _null_value(given: Any) -> str:
    if not isinstance(given, str) or {*given} & {*'"\r\n'}:
        raise ValueError
    return given


DELIMITER = Kind(
    "one ASCII character",
    r"one ASCII character (\t is a tab), and no letter, digit, space, quote, line break, nor any of + - . :",
    _delimiter,
)
NULL_VALUE = Kind("text", "text without quotes, line breaks and the delimiter", _null_value)

_COMPRESSION = Option(
    "compression",
    text(
        values=f"Parquet: {listed(parquet.COMPRESSIONS)}. ORC: {listed(orc.COMPRESSIONS)}. JSON, CSV, text:"
        f" {listed(EXTENSIONS)}"
    ),
    "text files have it in their names, as `.json.gz` or `.json.zst`",
    default_text="`snappy`; ORC `zstd`; JSON, CSV, text `none`",
)


def _compression(*choices: str) -> Option:
    return replace(_COMPRESSION, kind=choice(*choices))


_PARQUET = (
    Option(
        "compression_level", whole_number(), "Parquet with `gzip`, `zstd`, `lz4`, `brotli`", default_text="the codec's"
    ),
    Option(
        "row_group_bytes",
        whole_number(least=1, values="bytes"),
        "Parquet: size of a row group, in Arrow's memory. A task holds this much, and several times that while it"
        " encodes",
        default_text="32 MiB",
    ),
)
_CSV = (
    Option("header", flag(), "CSV: whether the first line has the names of the columns", default_text="`true`"),
    Option("delimiter", DELIMITER, r"CSV; `\t` is a tab", default_text="`,`"),
    Option("null_value", NULL_VALUE, "CSV: what stands for a null; needs pyarrow 26", default_text="empty"),
)
_ORC = (
    Option(
        "stripe_bytes",
        whole_number(least=1, values="bytes"),
        "ORC: encoded size of a stripe, which a task holds in memory",
        default_text="32 MiB",
    ),
)

_FORMATS: dict[str, tuple[Callable[..., Format], tuple[Option, ...]]] = {
    "parquet": (Parquet, (_compression(*parquet.COMPRESSIONS), *_PARQUET)),
    "json": (JsonLines, (_compression(*EXTENSIONS),)),
    "csv": (Csv, (_compression(*EXTENSIONS), *_CSV)),
    "orc": (Orc, (_compression(*orc.COMPRESSIONS), *_ORC)),
    "text": (Text, (_compression(*EXTENSIONS),)),
}

_FORMAT = Option(
    "format",
    choice(*_FORMATS),
    "`json` is one object per line; `text` is one string column, one line per record",
    default="parquet",
)

FORMAT_OPTIONS = (_FORMAT, _COMPRESSION, *_PARQUET, *_CSV, *_ORC)
LAYOUT_OPTIONS = (
    Option("partition_by", columns(), "as `day,city`, that become folders: `day=2024-05-01/city=Bern`"),
    Option("max_records_per_file", whole_number(least=1), "a file never has more"),
    Option(
        "max_bytes_per_file",
        whole_number(least=1, values="bytes"),
        "a file is finished after the record batch that takes it to about this size",
    ),
    Option(
        "max_open_files",
        whole_number(least=1),
        "at one time in one task, where `partition_by` is given; on S3 and other stores that buffer, no more than fit"
        " into 64 MiB",
        default_text="32",
    ),
)


def parse_format(options: Mapping[str, Any]) -> Format:
    """Return the format that ``options`` describe. Ignores options that no format has.

    Raises:
        ConfigurationError: a value is wrong, or an option belongs to another format.
    """
    name = parse(OWNER, [_FORMAT], options)["format"]
    make, its_options = _FORMATS[name]
    for option in options:
        if option in names(FORMAT_OPTIONS) and option not in ("format", *names(its_options)):
            others = [other for other, (_, theirs) in _FORMATS.items() if option in names(theirs)]
            raise ConfigurationError(
                f"the option {option!r} of {OWNER} is only for 'format' = {' or '.join(map(repr, others))}, not"
                f" {name!r}",
                option=option,
            )
    made = make(**parse(OWNER, its_options, options))
    if isinstance(made, Csv) and made.delimiter in made.null_value:
        raise wrong_value(OWNER, "null_value", NULL_VALUE.must_be)  # unquoted, a null would shift all later columns
    if isinstance(made, Csv):
        try:
            made.write_options()
        except TypeError:
            raise ConfigurationError(
                f"the option 'null_value' of {OWNER} needs pyarrow 26 or later, and this is {pa.__version__}",
                option="null_value",
            ) from None
    return made


def parse_layout(options: Mapping[str, Any]) -> Layout:
    """Return the layout that ``options`` describe. Ignores other options. Raises ConfigurationError: a value is
    wrong."""
    return Layout(**parse(OWNER, LAYOUT_OPTIONS, options))


# All options. ---------------------------------------------------------------------------------------------------------

_PLACE = (
    Option("path", place(), "the folder. Driver and executors must reach the same disk or store by it", needed=True),
    Option(
        "storage_options",
        mapping(),
        "what fsspec needs for the URL, such as credentials",
    ),
)
_BATCH_LOGS = Option(
    "batch_logs",
    choices("spark", "manifest"),
    "logs of complete batches to keep, for readers of whole batches",
)

OPTIONS = (*_PLACE, *FORMAT_OPTIONS, *LAYOUT_OPTIONS, _BATCH_LOGS)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The checked options.

    Attributes:
        store: the store with the folder of committed files; its path is absolute, and the same for every participant.
        format: the format of the files.
        layout: which records go into which file.
        batch_logs: the logs of complete batches that the sink keeps.
    """

    store: Store
    format: Format
    layout: Layout
    batch_logs: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FileOptions:
        """Parse the options of one sink. Any value may be text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, (*_PLACE, _BATCH_LOGS), options)
        store = store_at(values["path"], values.get("storage_options", {}))
        return cls(store, parse_format(options), parse_layout(options), values.get("batch_logs", ()))
