"""Lines of text: one column, one line per record, in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twopc.columns import ADVICE
from twopc.refusals import NOT_UTF8, Check, Rule, checker, first_null, first_true, is_text
from twopc_files.lines import Encode, LinesFormat


@dataclass(frozen=True, slots=True)
class Text(LinesFormat):
    """The text format."""

    name = "text"

    def check_type(self, schema: pa.Schema) -> None:
        if len(schema) != 1:
            raise TypeError("text files have exactly one column")
        super(Text, self).check_type(schema)

    def checker(self, schema: pa.Schema) -> Check:
        return checker(schema, _RULES)

    def encoder(self, schema: pa.Schema) -> Encode:  # noqa: ARG002  # there is only one schema
        return _encode


def _encode(batch: pa.RecordBatch) -> Iterator[Any]:
    """Yield the lines of ``batch``."""
    if batch.num_rows:
        all_of_them = pa.array([0, batch.num_rows], pa.int64())
        lines = pa.LargeListArray.from_arrays(all_of_them, batch.column(0).cast(pa.large_string()))
        yield pc.binary_join(lines, pa.scalar("\n", pa.large_string()))[0].as_buffer()
        yield b"\n"


_RULES = (
    NOT_UTF8,
    Rule(
        lambda _: True,
        first_null,
        "it is null, and a line of text can't be one. Write an empty string for it, or filter such records.",
    ),
    # Hadoop's reader, and therefore Spark, ends a line at either character.
    Rule(
        is_text,
        lambda column: first_true(pc.match_substring_regex(column, "[\r\n]")),
        f"it has a line break, and readers would take it for several records. {ADVICE}",
    ),
    Rule(
        is_text,
        lambda column: first_true(pc.starts_with(column, "\ufeff")),
        f"it begins with U+FEFF, a mark of Unicode that readers drop at the beginning of a file. {ADVICE}",
    ),
)
