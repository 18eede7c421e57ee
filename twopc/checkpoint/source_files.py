"""The files that a file source's offsets refer to.

The offset ``{"logOffset":7}`` is the number of a file in the source's folder of the checkpoint. This file,
``sources/0/7``, contains the version and one line per input file that Spark discovered at that moment. By default,
every tenth file is compact, such as ``sources/0/9.compact``, and repeats all files before it. Each source numbers its
files itself; the numbers are not batch ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from twopc.checkpoint.offsets import Reads, by_source, line_of, parse, parsed_line
from twopc.transaction import JsonValue

KEPT_BYTES = 256 * 1024
"""The log keeps only a digest of longer files, because each of its entries contains what the newest batch read."""

COMPACT = ".compact"

_WINDOW_BYTES = 64 * 1024
_NUMBER = "logOffset"


class Reader(Protocol):
    """A checkpoint folder. Paths are relative to it."""

    def size(self, path: str) -> int | None:
        """Return the length of a file in bytes, or None if it does not exist."""

    def text(self, path: str, start: int = 0) -> str:
        """Return a file from byte ``start`` on, as UTF-8. Callers ignore a partial first character."""

    def sha256(self, path: str) -> str:
        """Return the digest of a file, in hexadecimal."""


def number(offset: JsonValue) -> int | None:
    """Return the number in a file source's offset, or None for another source or a missing offset."""
    found = offset.get(_NUMBER) if isinstance(offset, dict) and len(offset) == 1 else None
    return found if isinstance(found, int) else None


def stands_for_files(entry: Reads) -> bool:
    """Return whether an offset of the entry belongs to a file source."""
    return any(number(offset) is not None for offset in by_source(entry).values())


def with_files(entry: Reads, files: dict[str, JsonValue]) -> Reads:
    """Return the entry, with the files that its offsets refer to under ``files``."""
    if not files:
        return entry
    first = {"sources": entry["sources"]} if "sources" in entry else {}  # first in messages
    return {**first, "files": files, **entry}


def read_before(folder: Reader, batch_id: int) -> Reads | None:
    """Return the offset log entry of the batch before ``batch_id``, or None if there is none. The entry does not
    include the files that its offsets refer to, because Spark removes old lists of files."""
    path = f"offsets/{batch_id - 1}"
    return parse(folder.text(path)) if batch_id and folder.size(path) is not None else None


def files_read(
    folder: Reader, batch_id: int, end: Mapping[str, JsonValue], before: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """For each source, return the names and contents of the files that the offsets at ``end`` refer to, except files
    that the offsets ``before`` already refer to. For the first batch, also return file 0 of every other source, which
    contains the first offsets of that source."""
    found: dict[str, JsonValue] = {}
    for source, offset in end.items():
        last = number(offset)
        if last is not None:
            began = number(before.get(source))
            numbers: Iterable[int] = range(0 if began is None else began + 1, last + 1)
        else:
            numbers = [0] if batch_id == 0 else []
        files: dict[str, JsonValue] = {}
        for each in numbers:
            files |= _file(folder, f"sources/{source}", each)
        if files:
            found[source] = files
    return found


def kept_files(reads: Reads) -> dict[str, dict[str, JsonValue]]:
    """Return what ``files_read`` returned for a batch, as recorded in the log."""
    return dict(reads.get("files", {}))


def content(folder: Reader, path: str) -> JsonValue:
    """Return what the log keeps of a file: its lines, or a digest if they are long; None if there is no such file.
    For a compact file, it keeps only the lines of the file's own number."""
    size = folder.size(path)
    if size is None:
        return None
    if path.endswith(COMPACT):
        return _own(folder, path, size, int(path.rpartition("/")[2].removesuffix(COMPACT)))
    return _whole(folder, path, size)


def is_whole(folder: Reader, path: str) -> bool:
    """Return whether Spark can read a file source's file, which must begin with a version and end with a line of JSON.
    Only the end of a long file is checked."""
    size = folder.size(path)
    if not size:
        return False
    text = folder.text(path, max(0, size - _WINDOW_BYTES))
    first, _, last = text.rpartition("\n")
    if size <= _WINDOW_BYTES and not text.startswith("v"):
        return False
    return "\0" not in text and (_is_json(last) if first else last.startswith("v"))


def file_lines(content: JsonValue) -> list[str] | None:
    """Return a file's lines from its kept content, or None if that is a digest."""
    return list(map(line_of, content)) if isinstance(content, list) else None


def _file(folder: Reader, source: str, number: int) -> dict[str, JsonValue]:
    for name in (str(number), f"{number}{COMPACT}"):
        found = content(folder, f"{source}/{name}")
        if found is not None:
            return {name: found}
    return {}


def _whole(folder: Reader, path: str, size: int) -> JsonValue:
    if size > KEPT_BYTES:
        return {"bytes": size, "sha256": folder.sha256(path)}
    return [parsed_line(line) for line in folder.text(path).split("\n")]


def _own(folder: Reader, path: str, size: int, number: int) -> JsonValue:
    """Return the last lines of a compact file, which it adds to the files before it. The version is left out."""
    window = _WINDOW_BYTES
    while True:
        start = max(0, size - window)
        lines = folder.text(path, start).split("\n")[1:]  # without the version or a partial first line
        own = [line for line in lines if _batch(line) == number]
        if start == 0 or len(own) < len(lines):
            break
        window *= 4
    data = "\n".join(own).encode()
    if len(data) > KEPT_BYTES:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return [parsed_line(line) for line in own]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _batch(line: str) -> JsonValue:
    return json.loads(line).get("batchId") if _is_json(line) else None
