"""An entry of Spark's offset log as JSON, from which the same text can be made again. No I/O.

.. code-block:: text

    v1
    {"batchWatermarkMs":0,"batchTimestampMs":1795364020298,"conf":{...}}
    {"orders":{"0":100}}
    -

The version; what Spark runs the batch with; and for each source the offset at which the batch ends, or ``-`` while it
has none. In version 2, of Spark 4.2, each offset has the name of its source and a colon before it.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from twopc.transaction import JsonValue

Reads: TypeAlias = "dict[str, Any]"
"""What a batch reads, as JSON: ``sources`` (a list of offsets, or a dictionary by name), ``files`` where offsets stand
for files in the checkpoint (``source_files``), ``folders`` (``by_source``), ``metadata`` and ``version``."""

_NAMED = "v2"
_NONE_YET = "-"


def parse(text: str) -> Reads:
    """The entry as JSON.

    Raises:
        ValueError: it is cut off, or no entry.
    """
    version, *lines = text.split("\n")
    if not version.startswith("v") or len(lines) < 2 or "" in lines[1:]:
        raise ValueError(f"not an entry of Spark's offset log: {text[:100]!r}")
    metadata, *offsets = lines
    sources: JsonValue
    if version == _NAMED:
        sources = {name: _offset(line) for name, _, line in (offset.partition(":") for offset in offsets)}
    else:
        sources = [_offset(line) for line in offsets]
    reads: Reads = {"sources": sources, "metadata": parsed_line(metadata), "version": version}
    return reads if text_of(reads) == text else {"text": text}


def is_entry(reads: Reads) -> bool:
    """Whether ``reads`` has the form that ``parse`` returns."""
    return "text" in reads or reads.keys() >= {"sources", "metadata", "version"}


def text_of(reads: Reads) -> str:
    """The entry as Spark wrote it, byte by byte. Undoes ``parse``."""
    if "text" in reads:
        return str(reads["text"])
    sources = reads["sources"]
    if isinstance(sources, dict):
        offsets = [f"{name}:{_offset_line(offset)}" for name, offset in sources.items()]
    else:
        offsets = [_offset_line(offset) for offset in sources]
    return "\n".join([reads["version"], line_of(reads["metadata"]), *offsets])


def by_source(reads: Reads) -> dict[str, JsonValue]:
    """The offset of each source by the name of its folder in the checkpoint: its name, its number in the plan, or what
    ``folders`` says where Spark lists a source twice, as its plan has it twice."""
    sources = reads.get("sources", [])
    if isinstance(sources, dict):
        return sources
    return dict(zip(reads.get("folders") or map(str, range(len(sources))), sources, strict=False))


def watermark_ms(reads: Reads) -> int:
    """The watermark that the batch begins with, in milliseconds."""
    metadata = reads.get("metadata")
    return int(metadata.get("batchWatermarkMs", 0)) if isinstance(metadata, dict) else 0


def records_between(earlier: JsonValue, later: JsonValue) -> int | None:
    """How many records lie between two offsets of Kafka's source, or None where that is not known."""
    before, after = _partitions(earlier), _partitions(later)
    if before is None or after is None or before.keys() != after.keys():
        return None
    return sum(after.values()) - sum(before.values())


def _partitions(offset: JsonValue) -> dict[tuple[str, str], int] | None:
    """``{"orders":{"0":100,"1":70}}`` by topic and partition; None where an offset has another form."""
    if not isinstance(offset, dict) or not offset:
        return None
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in offset.items():
        if not isinstance(partitions, dict):
            return None
        for partition, place in partitions.items():
            if not partition.isdecimal() or not isinstance(place, int):
                return None
            found[topic, partition] = place
    return found


def parsed_line(line: str) -> JsonValue:
    """A line as JSON where that makes the same line again, else as text. A text is never JSON that was parsed."""
    try:
        value: JsonValue = json.loads(line, parse_constant=_unequal_to_itself)
    except (ValueError, RecursionError):
        return line
    return value if isinstance(value, dict | list | int | float) and line_of(value) == line else line


def _unequal_to_itself(constant: str) -> JsonValue:
    raise ValueError(constant)  # NaN


def line_of(value: JsonValue) -> str:
    """The line, as Spark's serializers write it. Undoes ``parsed_line``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _offset(line: str) -> JsonValue:
    return None if line == _NONE_YET else parsed_line(line)


def _offset_line(offset: JsonValue) -> str:
    return _NONE_YET if offset is None else line_of(offset)
