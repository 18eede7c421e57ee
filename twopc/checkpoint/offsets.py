"""Entries of Spark's offset log as JSON, from which the same text can be restored. No I/O.

.. code-block:: text

    v1
    {"batchWatermarkMs":0,"batchTimestampMs":1795364020298,"conf":{...}}
    {"orders":{"0":100}}
    -

The lines are the version, the settings with which Spark runs the batch, and per source the offset at which the batch
ends, or ``-`` while the source has no offset. In version 2, which Spark 4.2 writes, the source's name and a colon
precede its offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from twopc.transaction import JsonValue

Reads: TypeAlias = "dict[str, Any]"
"""The input of a batch, as JSON: ``sources`` (a list of offsets, or a dictionary by name), ``files`` where offsets
stand for files in the checkpoint (``source_files``), ``folders`` (``by_source``), ``metadata`` and ``version``."""

_NAMED = "v2"
_NONE_YET = "-"


def parse(text: str) -> Reads:
    """Return the entry as JSON.

    Raises:
        ValueError: the text is cut off, or is not an entry.
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


def ends_whole(text: str) -> bool:
    """Return whether the last offset of an entry is complete, as far as its JSON shows. Spark refuses an entry that is
    cut off."""
    offset = text.rpartition("\n")[2]
    if text.startswith(f"{_NAMED}\n"):
        offset = offset.partition(":")[2]
    try:
        return offset == _NONE_YET or json.loads(offset) is not None
    except (ValueError, RecursionError):
        return False


def is_entry(reads: Reads) -> bool:
    """Return whether ``reads`` is of the form that ``parse`` returns."""
    return "text" in reads or reads.keys() >= {"sources", "metadata", "version"}


def text_of(reads: Reads) -> str:
    """Return the entry exactly as Spark wrote it. The inverse of ``parse``."""
    if "text" in reads:
        return str(reads["text"])
    sources = reads["sources"]
    if isinstance(sources, dict):
        offsets = [f"{name}:{_offset_line(offset)}" for name, offset in sources.items()]
    else:
        offsets = [_offset_line(offset) for offset in sources]
    return "\n".join([reads["version"], line_of(reads["metadata"]), *offsets])


def by_source(reads: Reads) -> dict[str, JsonValue]:
    """Return the offset of each source by its folder in the checkpoint: the source's name, or its number in the plan.
    If the plan contains a source twice, Spark lists two offsets for it, and ``folders`` names the folder of each
    offset."""
    sources = reads.get("sources", [])
    if isinstance(sources, dict):
        return sources
    return dict(zip(reads.get("folders") or map(str, range(len(sources))), sources, strict=False))


def watermark_ms(reads: Reads) -> int:
    """Return the watermark with which the batch begins, in milliseconds."""
    metadata = reads.get("metadata")
    return int(metadata.get("batchWatermarkMs", 0)) if isinstance(metadata, dict) else 0


def records_between(earlier: JsonValue, later: JsonValue) -> int | None:
    """Return the number of records between two offsets of a Kafka source, or None if unknown, for example because a
    topic was deleted and created again."""
    before, after = _partitions(earlier), _partitions(later)
    if before is None or after is None or before.keys() != after.keys():
        return None
    counts = [after[partition] - before[partition] for partition in after]
    return None if any(count < 0 for count in counts) else sum(counts)


def topics_of(offset: JsonValue) -> set[str]:
    """Return the topics in an offset of a Kafka source; none for an offset of another form."""
    return {topic for topic, _ in _partitions(offset) or ()}


def partitions_by_topic(reads: Reads) -> dict[str, set[str]]:
    """Return the partitions in the Kafka offsets of a batch, by topic."""
    found: dict[str, set[str]] = {}
    for offset in by_source(reads).values():
        for topic, partition in _partitions(offset) or ():
            found.setdefault(topic, set()).add(partition)
    return found


def grown(before: Mapping[str, set[str]], now: Mapping[str, set[str]]) -> dict[str, tuple[int, int]]:
    """Return the topics that gained partitions, with their numbers of partitions before and now."""
    return {topic: (len(before[topic]), len(now[topic])) for topic in now if now[topic] - before.get(topic, now[topic])}


def _partitions(offset: JsonValue) -> dict[tuple[str, str], int] | None:
    """Return the offset of each (topic, partition) in an offset such as ``{"orders":{"0":100,"1":70}}``, or None for an
    offset of another form."""
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
    """Return a line as JSON if the same line can be restored from it, else as text. So text is always a raw line, never
    a JSON string."""
    try:
        value: JsonValue = json.loads(line, parse_constant=_unequal_to_itself)
    except (ValueError, RecursionError):
        return line
    return value if isinstance(value, dict | list | int | float) and line_of(value) == line else line


def _unequal_to_itself(constant: str) -> JsonValue:
    raise ValueError(constant)  # NaN


def line_of(value: JsonValue) -> str:
    """Return the line as Spark's serializers write it. The inverse of ``parsed_line``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _offset(line: str) -> JsonValue:
    return None if line == _NONE_YET else parsed_line(line)


def _offset_line(offset: JsonValue) -> str:
    return _NONE_YET if offset is None else line_of(offset)
