"""Comparison of a checkpoint with its log.

Spark writes ``offsets/N`` before it runs batch N and ``commits/N`` after it, and syncs neither on a disk. A checkpoint
that is behind its log lacks the newest of these files. Once Spark has planned batch N again, the checkpoint contains an
``offsets/N`` that differs from the decision, and no ``commits/N``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.offsets import Reads, by_source, ends_whole, is_entry, parse, records_between, text_of
from twopc.checkpoint.source_files import COMPACT, content, is_whole, kept_files, number, with_files
from twopc.errors import LogMismatch
from twopc.log.batch_identity import ABSENT, Difference, differences
from twopc.log.entries import Entry
from twopc.transaction import JsonValue

UNCHANGED = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A batch whose plan in the checkpoint differs from its decision in the log."""

    batch_id: int
    is_noted: bool  # whether Spark has recorded it as done
    found: tuple[Difference, ...]  # the differences; empty if the checkpoint's entry is cut off
    records: Mapping[str, int]  # source → how many Kafka records later the planned batch ends, if known

    @property
    def read_otherwise(self) -> bool:
        """Whether the batch ran with other input. Files that a source has since lost do not count."""
        return any(each.path.partition(".")[0] != "files" or each.now != ABSENT for each in self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint compared with its log."""

    query_id: str
    decided: int | None  # the newest batch that the log has decided, or None
    reads: Mapping[int, Reads]  # decided batch → what it read, as far as the log keeps it
    planned: tuple[int, ...]  # the batches in ``offsets``, ascending
    newest: Mapping[str, JsonValue]  # source → its offset in the newest plan that Spark can read
    noted: int | None  # the newest batch in ``commits`` that Spark can read, or None
    # The paths that Spark would fail to read: truncated files, and missing lists of files.
    cut_off: frozenset[str]
    has_state: bool  # whether the query keeps state, which advances only when each batch is evaluated
    mismatches: tuple[Mismatch, ...]

    def has_whole(self, batch_id: int) -> bool:
        """Return whether Spark can read the plan of a batch."""
        return batch_id in self.planned and f"offsets/{batch_id}" not in self.cut_off

    @property
    def missing(self) -> list[int]:
        """The decided batches that Spark has neither recorded as done nor planned."""
        first = -1 if self.noted is None else self.noted
        return [] if self.decided is None else sorted({*range(first + 1, self.decided + 1)} - {*self.planned})


def compare(folder: CheckpointFolder, entries: Sequence[Entry]) -> Comparison:
    """Read the checkpoint, and compare it with the log's kept entries, oldest first.

    Raises ConfigurationError if the checkpoint can't be read, and LogMismatch if it belongs to another query, or if the
    log was not written for a Spark query.
    """
    query_id, tail = folder.query_id(), entries[-1]
    if query_id != tail.owner:
        raise LogMismatch(
            f"the checkpoint at {folder.url} belongs to query {query_id}, and the log to query {tail.owner}."
            f" {UNCHANGED} Name the folders of one query."
        )
    reads = {e.decided: e.reads for e in entries if e.decided is not None and isinstance(e.reads, dict)}
    if strange := [n for n, of_batch in reads.items() if not is_entry(of_batch)]:
        raise LogMismatch(
            f"the input of batch {strange[0]} in the log does not have the form of Spark's checkpoint. {UNCHANGED} Is"
            " it the log of a query that does not run on Spark?"
        )
    planned = folder.numbers("offsets")  # before the commits, so that later plans of a running query are left out
    commits = folder.numbers("commits")
    noted = next((n for n in reversed(commits) if noted_entry(folder, n) is not None), None)
    first = -1 if noted is None else noted
    looked_at = {}
    for n in planned:
        if n in reads or n >= first:
            with contextlib.suppress(FileNotFoundError):  # a running query removes old files
                looked_at[n] = _planned(folder, n, reads.get(n))
    cut_off = {f"offsets/{n}" for n, entry in looked_at.items() if entry is None}
    cut_off |= {f"commits/{n}" for n in commits if n > first}
    newest = _ends(folder, next((looked_at[n] for n in reversed(planned) if looked_at.get(n)), None))
    cut_off |= {*_unreadable_lists(folder, newest)}
    mismatches = [_mismatch(n, n <= first, reads[n], entry) for n, entry in looked_at.items() if n in reads]
    return Comparison(
        query_id=query_id,
        decided=tail.decided,
        reads=reads,
        planned=tuple(planned),
        newest=newest,
        noted=noted,
        cut_off=frozenset(cut_off),
        has_state=bool(folder.names("state")),
        mismatches=tuple(m for m in mismatches if m.found or f"offsets/{m.batch_id}" in cut_off),
    )


def _ends(folder: CheckpointFolder, planned: Reads | None) -> dict[str, JsonValue]:
    if planned is None:
        return {}
    sources = planned.get("sources")
    folders = {"folders": folder.source_folders(sources)} if isinstance(sources, list) else {}
    return by_source({**folders, **planned})


def _unreadable_lists(folder: CheckpointFolder, newest: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the file lists that Spark would fail to read at its start. It reads all lists from the newest compact one
    on, including lists of files discovered for a batch that is not planned yet."""
    for source, offset in newest.items():
        if (last := number(offset)) is None:
            continue
        at = f"sources/{source}"
        single, compact = {*folder.numbers(at)}, folder.numbers(at, COMPACT)[-1:]
        needed = [f"{n}{COMPACT}" for n in compact]
        needed += [str(n) for n in range(max(compact, default=-1) + 1, max([last, *single]) + 1)]
        yield from (f"{at}/{name}" for name in needed if not is_whole(folder, f"{at}/{name}"))


def _mismatch(batch_id: int, is_noted: bool, decided: Reads, planned: Reads | None) -> Mismatch:
    if planned is None:
        return Mismatch(batch_id, is_noted, (), {})
    ends, later = by_source(decided), by_source(planned)
    between = {source: records_between(ends[source], later.get(source)) for source in ends}
    records = {source: count for source, count in between.items() if count}
    return Mismatch(batch_id, is_noted, tuple(differences(decided, planned)), records)


def _planned(folder: CheckpointFolder, batch_id: int, decided: Reads | None) -> Reads | None:
    """Return the checkpoint's entry for a batch, with the current content of the source files that the log records for
    the batch. None if the entry is cut off."""
    try:
        entry = parse(text := folder.text(f"offsets/{batch_id}"))
    except ValueError:
        return None
    if not ends_whole(text) and (decided is None or text != text_of(decided)):
        return None
    if decided is None:
        return entry
    if "folders" in decided:
        entry["folders"] = decided["folders"]
    files: dict[str, JsonValue] = {
        source: {
            name: found
            for name, kept in of_source.items()
            if (found := kept_now(folder, source, name, kept)) is not None
        }
        for source, of_source in kept_files(decided).items()
    }
    return with_files(entry, {source: of_source for source, of_source in files.items() if of_source})


def kept_now(folder: CheckpointFolder, source: str, name: str, kept: JsonValue) -> JsonValue:
    """Return the current content of a file source's file; None if it is missing or cut off. A file that was removed
    because a later compact file repeats it counts as unchanged."""
    path = f"sources/{source}/{name}"
    found = content(folder, path)
    if found is None and not name.endswith(COMPACT):
        later = folder.numbers(f"sources/{source}", COMPACT)[-1:]
        return kept if later and later[0] > int(name) else None
    return found if found == kept or is_whole(folder, path) else None


def noted_entry(folder: CheckpointFolder, batch_id: int) -> tuple[str, dict[str, object]] | None:
    """Return the version and the JSON of a batch's entry in ``commits``, or None if the entry is cut off."""
    try:
        version, text = folder.text(f"commits/{batch_id}").split("\n")
        value = json.loads(text)
    except ValueError:
        return None
    return (version, value) if isinstance(value, dict) else None
