"""What offsets of a file source stand for: ``{"logOffset":7}`` is the number of a file in the source's own folder of
the checkpoint, which lists the input files that Spark took up at that moment.

``sources/0/7`` has the version and a line per input file. Each tenth, by default, is ``sources/0/9.compact`` and
repeats all before it. The source counts by itself: its numbers are not those of the batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from twopc.checkpoint.offsets import Reads, by_source, line_of, parse, parsed_line
from twopc.transaction import JsonValue

KEPT_BYTES = 256 * 1024
"""Of a longer file a digest is kept. Every entry of the commit log carries what the newest batch read."""

COMPACT = ".compact"

_WINDOW_BYTES = 64 * 1024
_NUMBER = "logOffset"


class Reader(Protocol):
    """A checkpoint's folder. Paths are below it."""

    def size(self, path: str) -> int | None:
        """The length of a file in bytes, or None where there is none."""

    def text(self, path: str, start: int = 0) -> str:
        """A file from byte ``start`` on, as UTF-8; what comes before the first whole character does not matter."""

    def sha256(self, path: str) -> str:
        """The digest of a file, in hexadecimal."""


def number(offset: JsonValue) -> int | None:
    """The number that an offset of a file source is, or None for another source's, or none."""
    found = offset.get(_NUMBER) if isinstance(offset, dict) and len(offset) == 1 else None
    return found if isinstance(found, int) else None


def stands_for_files(entry: Reads) -> bool:
    """Whether an offset of the entry is a file source's."""
    return any(number(offset) is not None for offset in by_source(entry).values())


def with_files(entry: Reads, files: dict[str, JsonValue]) -> Reads:
    """The entry, and below ``files`` what its offsets stand for."""
    if not files:
        return entry
    sources = {"sources": entry["sources"]} if "sources" in entry else {}  # first, as a message shows the first
    return {**sources, "files": files, **entry}


def read_before(folder: Reader, batch_id: int) -> Reads | None:
    """Return the offset log entry of the batch before ``batch_id``, or None if there is none. It lacks the files that
    its offsets stand for, because Spark removes old lists of files."""
    path = f"offsets/{batch_id - 1}"
    return parse(folder.text(path)) if batch_id and folder.size(path) is not None else None


def files_read(
    folder: Reader, batch_id: int, end: Mapping[str, JsonValue], before: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Of each source by its folder: the files, by their names, that its offset stands for beyond that of the batch
    before. Of the first batch also what other sources keep in a file 0: the offsets at which they began.

    Args:
        folder: the checkpoint.
        batch_id: the batch's number.
        end: the offsets at which it ends, by the sources' folders.
        before: those of the batch before.
    """
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
    """What ``files_read`` found, in what was kept of a batch."""
    return dict(reads.get("files", {}))


def content(folder: Reader, path: str) -> JsonValue:
    """What is kept of a file: its lines, of a ``.compact`` one those of its own number; a digest of what is long; or
    None where there is no such file."""
    size = folder.size(path)
    if size is None:
        return None
    if path.endswith(COMPACT):
        return _own(folder, path, size, int(path.rpartition("/")[2].removesuffix(COMPACT)))
    return _whole(folder, path, size)


def file_lines(content: JsonValue) -> list[str] | None:
    """A file's lines from what was kept of it, or None where that is a digest."""
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
    """What a ``.compact`` file adds to those before it, which stands at its end. The version is left out."""
    window = _WINDOW_BYTES
    while True:
        start = max(0, size - window)
        lines = folder.text(path, start).split("\n")[1:]  # without the version, or a line that was cut off
        own = [line for line in lines if _batch(line) == number]
        if start == 0 or len(own) < len(lines):
            break
        window *= 4
    data = "\n".join(own).encode()
    if len(data) > KEPT_BYTES:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return [parsed_line(line) for line in own]


def _batch(line: str) -> JsonValue:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value.get("batchId") if isinstance(value, dict) else None
