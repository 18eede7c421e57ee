"""What a checkpoint lacks of the batches that its log has decided, and how it gets that back.

Spark writes ``offsets/N`` before it runs batch N and ``commits/N`` after it, and syncs neither on a disk. A checkpoint
that is behind its log lacks the newest of them; or, once Spark has planned batch N again, has an ``offsets/N`` without
``commits/N`` that differs from what was decided. With the decided one in its place Spark repeats exactly that batch.
The log knows it, nothing is written again, and state and watermark go on from where they would be.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.offsets import Reads, by_source, is_entry, parse, records_between, text_of, watermark_ms
from twopc.checkpoint.source_files import (
    COMPACT,
    content,
    file_lines,
    kept_files,
    number,
    stands_for_files,
    with_files,
)
from twopc.errors import LogMismatch, Refused
from twopc.log.batch_identity import ABSENT, Difference, differences, shown
from twopc.log.entries import Entry
from twopc.transaction import JsonValue

UNCHANGED = "Nothing was changed."

_OTHERWISE = (
    "Restore a newer backup of the checkpoint; or start with a new checkpoint and a new log, which writes again what it"
    " reads again."
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A batch that the checkpoint has planned otherwise than the log has decided it.

    Attributes:
        batch_id: its number.
        is_noted: whether Spark has noted it as done.
        found: where it differs, or nothing where the checkpoint's entry is cut off.
        records: by how many records of Kafka the planned batch ends later, by source; only where that is known.
    """

    batch_id: int
    is_noted: bool
    found: tuple[Difference, ...]
    records: Mapping[str, int]

    @property
    def read_otherwise(self) -> bool:
        """Whether the batch ran with other input. A file that a source has lost since says nothing about that."""
        return any(each.path.partition(".")[0] != "files" or each.now != ABSENT for each in self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside its log.

    Attributes:
        query_id: whose checkpoint it is.
        decided: the newest batch that the log has decided, or None.
        reads: what decided batches read, as far as the log keeps it.
        planned: the batches of ``offsets``, ascending.
        noted: the newest batch of ``commits`` that Spark could read, or None.
        cut_off: paths that Spark could not read.
        has_state: whether the query keeps state, which only the evaluation of each batch advances.
        mismatches: batches that differ.
    """

    query_id: str
    decided: int | None
    reads: Mapping[int, Reads]
    planned: tuple[int, ...]
    noted: int | None
    cut_off: frozenset[str]
    has_state: bool
    mismatches: tuple[Mismatch, ...]

    def has_whole(self, batch_id: int) -> bool:
        """Whether Spark can read what it has planned for a batch."""
        return batch_id in self.planned and f"offsets/{batch_id}" not in self.cut_off

    @property
    def missing(self) -> list[int]:
        """Decided batches that Spark has neither noted nor planned."""
        first = -1 if self.noted is None else self.noted
        return [] if self.decided is None else sorted({*range(first + 1, self.decided + 1)} - {*self.planned})


@dataclass(frozen=True, slots=True)
class Change:
    """A file of the checkpoint that is written, or put aside where ``data`` is None."""

    path: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How to mend a checkpoint.

    Attributes:
        changes: in this order. After each of them the query would go on without loss, or refuse to.
        goes_on_with: the decided batch that the query then evaluates once more; or None where the next one is new.
        remaining: how many decided batches come after that one. Then the query stops, to be mended again.
    """

    changes: tuple[Change, ...]
    goes_on_with: int | None = None
    remaining: int = 0


# What is the case. ------------------------------------------------------------------------------------------------


def compare(folder: CheckpointFolder, entries: Sequence[Entry]) -> Comparison:
    """Read the checkpoint, and compare it with the entries of the log that are kept, oldest first.

    Raises:
        ConfigurationError: the checkpoint can't be read.
        LogMismatch: it is another query's, or the log has no entries of Spark's.
    """
    query_id, tail = folder.query_id(), entries[-1]
    if query_id != tail.owner:
        raise LogMismatch(
            f"the checkpoint at {folder.url} is of query {query_id}, and the log of query {tail.owner}. {UNCHANGED}"
            " Name the folders of one query."
        )
    reads = {e.decided: e.reads for e in entries if e.decided is not None and isinstance(e.reads, dict)}
    if strange := [n for n, of_batch in reads.items() if not is_entry(of_batch)]:
        raise LogMismatch(
            f"what the log says that batch {strange[0]} read is nothing that Spark writes to a checkpoint. {UNCHANGED}"
            " Is it the log of a query that does not run on Spark?"
        )
    planned = folder.numbers("offsets")  # before the commits: what a query that runs has planned since is not looked at
    commits = folder.numbers("commits")
    noted = next((n for n in reversed(commits) if _noted(folder, n) is not None), None)
    first = -1 if noted is None else noted
    looked_at = {}
    for n in planned:
        if n in reads or n >= first:
            with contextlib.suppress(FileNotFoundError):  # a query that runs removes what is old
                looked_at[n] = _planned(folder, n, reads.get(n))
    cut_off = {f"offsets/{n}" for n, entry in looked_at.items() if entry is None}
    cut_off |= {f"commits/{n}" for n in commits if n > first}
    mismatches = [_mismatch(n, n <= first, reads[n], entry) for n, entry in looked_at.items() if n in reads]
    return Comparison(
        query_id=query_id,
        decided=tail.decided,
        reads=reads,
        planned=tuple(planned),
        noted=noted,
        cut_off=frozenset(cut_off),
        has_state=bool(folder.names("state")),
        mismatches=tuple(m for m in mismatches if m.found or f"offsets/{m.batch_id}" in cut_off),
    )


def _mismatch(batch_id: int, is_noted: bool, decided: Reads, planned: Reads | None) -> Mismatch:
    if planned is None:
        return Mismatch(batch_id, is_noted, (), {})
    ends, later = by_source(decided), by_source(planned)
    between = {source: records_between(ends[source], later.get(source)) for source in ends}
    records = {source: count for source, count in between.items() if count}
    return Mismatch(batch_id, is_noted, tuple(differences(decided, planned)), records)


def _planned(folder: CheckpointFolder, batch_id: int, decided: Reads | None) -> Reads | None:
    """What the checkpoint says of a batch, with those of its files that the log has; None where it is cut off."""
    try:
        entry = parse(folder.text(f"offsets/{batch_id}"))
    except ValueError:
        return None
    if decided is None:
        return entry
    if "folders" in decided:
        entry["folders"] = decided["folders"]
    files: dict[str, JsonValue] = {
        source: {
            name: found for name, kept in of_source.items() if (found := _now(folder, source, name, kept)) is not None
        }
        for source, of_source in kept_files(decided).items()
    }
    return with_files(entry, {source: of_source for source, of_source in files.items() if of_source})


def _now(folder: CheckpointFolder, source: str, name: str, kept: JsonValue) -> JsonValue:
    """What a file source's file is now. One that is gone since a later one repeats it counts as kept."""
    found = content(folder, f"sources/{source}/{name}")
    if found is None and not name.endswith(COMPACT):
        later = folder.numbers(f"sources/{source}", COMPACT)[-1:]
        return kept if later and later[0] > int(name) else None
    return found


def _noted(folder: CheckpointFolder, batch_id: int) -> tuple[str, dict[str, object]] | None:
    """The version and the JSON of an entry of ``commits``, or None where it is cut off."""
    try:
        version, text = folder.text(f"commits/{batch_id}").split("\n")
        value = json.loads(text)
    except ValueError:
        return None
    return (version, value) if isinstance(value, dict) else None


# What to do about it. ---------------------------------------------------------------------------------------------


def plan(folder: CheckpointFolder, compared: Comparison) -> Plan:
    """How the checkpoint gets back what it lacks, so that the query goes on exactly where it was.

    Raises:
        LogMismatch: the log is the older of the two.
        Refused: what is lacking is not known exactly. The message says what to do instead.
    """
    decided, noted = compared.decided, -1 if compared.noted is None else compared.noted
    if decided is None:
        return Plan(())
    _require_log_of_that_age(compared, decided, noted)
    noted_otherwise = _noted_otherwise(compared, decided)
    changes = _Changes(folder, compared)
    changes.put_aside(path for path in sorted(compared.cut_off) if path.startswith("commits/"))
    if noted_otherwise:
        changes.put_aside([f"commits/{decided}"])
        noted = decided - 1
    else:
        changes.restore_files_of_noted()
    if noted == decided:
        changes.put_aside(
            f"offsets/{n}" for n in compared.planned if n > decided and f"offsets/{n}" in compared.cut_off
        )
        for batch_id in _starts_from(compared, decided):
            if not compared.has_whole(batch_id):
                changes.plan_again(batch_id)
        return Plan(changes.listed())
    batches = _to_restore(compared, decided, noted)
    changes.put_aside_what_follows(batches[-1])
    for batch_id in batches:
        changes.plan_again(batch_id)
        if noted < batch_id < batches[-1]:
            changes.note(batch_id)
    return Plan(changes.listed(), batches[-1], decided - batches[-1])


def _starts_from(compared: Comparison, decided: int) -> list[int]:
    """The batches whose plans Spark reads at its start, where the newest decided one is done: the newest and the one
    before it. A driver that outlived the restore of a backup has left the newest without the one before."""
    before = decided - 1
    is_newest = not any(n > decided and compared.has_whole(n) for n in compared.planned)
    return [before, decided] if is_newest and before in compared.reads else [decided]


def _require_log_of_that_age(compared: Comparison, decided: int, noted: int) -> None:
    newest = max([noted, *(n - 1 for n in compared.planned)])
    if newest > decided:
        raise LogMismatch(
            f"the checkpoint has noted batch {newest}, and the log has decided batch {decided}: the log is the older of"
            f" the two. {UNCHANGED} Restore the newer log: what it had decided since would be written twice."
        )


def _noted_otherwise(compared: Comparison, decided: int) -> bool:
    """Whether Spark has noted the newest decided batch as done with other input: it was planned anew, and its driver
    died before it was compared. Nothing was written since.

    Raises:
        Refused: an earlier batch was.
    """
    found = [mismatch for mismatch in compared.mismatches if mismatch.is_noted and mismatch.read_otherwise]
    for mismatch in found:
        if mismatch.batch_id < decided:
            raise Refused(
                f"Spark has noted batch {mismatch.batch_id} as done, with other input than it was decided with:"
                f" {shown(mismatch.found)}. {UNCHANGED} The query has gone on from there, so what lies between the two"
                " was lost or written twice: compare the source with the target there, and mend the target by other"
                " means."
            )
    return bool(found)


def _to_restore(compared: Comparison, decided: int, noted: int) -> list[int]:
    """The batches that must be planned as they were decided, ascending. A query with state evaluates each of them, so
    it gets them one by one; another one needs to evaluate only the last."""
    batches = [noted + 1] if compared.has_state else [*range(noted + 1, decided + 1)]
    if noted >= 0 and not compared.has_whole(noted):
        batches = [noted, *batches]  # where the next one begins
    unknown = [n for n in batches if n not in compared.reads]
    if unknown and not compared.has_state and not _has_file_source(compared):
        # The offsets of the two newest batches say all that was read; the files that a source has seen they don't.
        known = [n for n in batches if n > unknown[-1]]
        if len(known) > 1:
            return known
    if unknown:
        kept = f"that only from batch {min(compared.reads)} on" if compared.reads else "that of no batch"
        raise Refused(
            f"batch {unknown[0]} must be planned as it was decided, and the log does not tell what it read. It tells"
            f" {kept}: older entries are pruned, or were written by a version that did not keep it. {UNCHANGED}"
            f" {_OTHERWISE}"
        )
    return batches


def _has_file_source(compared: Comparison) -> bool:
    return any(stands_for_files(reads) for reads in compared.reads.values())


class _Changes:
    """The changes so far, in order, and the checkpoint as it would be after them."""

    def __init__(self, folder: CheckpointFolder, compared: Comparison) -> None:
        self._folder = folder
        self._compared = compared
        self._differing = {mismatch.batch_id for mismatch in compared.mismatches}
        self._changed: dict[str, bytes | None] = {}

    def listed(self) -> tuple[Change, ...]:
        return tuple(Change(path, data) for path, data in self._changed.items())

    def put_aside(self, paths: Iterable[str]) -> None:
        self._changed |= dict.fromkeys(paths)

    def put_aside_what_follows(self, batch_id: int) -> None:
        """What Spark has planned after a batch that comes again is planned anew, and what its file sources have taken
        up since is taken up again."""
        self.put_aside(f"offsets/{later}" for later in reversed(self._compared.planned) if later > batch_id)
        for source, offset in by_source(self._compared.reads[batch_id]).items():
            last = number(offset)
            if last is not None:
                newer = [name for later, name in self._numbered(source) if later > last]
                self.put_aside(f"sources/{source}/{name}" for name in reversed(newer))

    def plan_again(self, batch_id: int) -> None:
        """Have a batch planned as it was decided."""
        reads = self._compared.reads[batch_id]
        self._require_files_kept(batch_id, reads)
        self._restore_files(batch_id)
        if batch_id in self._differing or batch_id not in self._compared.planned:
            self._changed[f"offsets/{batch_id}"] = text_of(reads).encode()

    def restore_files_of_noted(self) -> None:
        """Have the files that a source lost of batches that are done: else it takes their input up once more."""
        for mismatch in self._compared.mismatches:
            if mismatch.is_noted:
                self._restore_files(mismatch.batch_id)

    def note(self, batch_id: int) -> None:
        """Have a batch noted as done, in the form of the newest that is."""
        noted = self._compared.noted
        version, value = (None if noted is None else _noted(self._folder, noted)) or ("v1", {})
        value = {**value, "nextBatchWatermarkMs": watermark_ms(self._compared.reads[batch_id + 1])}
        self._changed[f"commits/{batch_id}"] = f"{version}\n{json.dumps(value, separators=(',', ':'))}".encode()

    # Files of file sources. -----------------------------------------------------------------------------------------

    def _restore_files(self, batch_id: int) -> None:
        for source, files in kept_files(self._compared.reads[batch_id]).items():
            for name, kept in files.items():
                if _now(self._folder, source, name, kept) != kept:
                    self._restore(batch_id, source, name, kept)

    def _restore(self, batch_id: int, source: str, name: str, kept: JsonValue) -> None:
        path = f"sources/{source}/{name}"
        lines = file_lines(kept)
        if lines is None:
            raise Refused(
                f"{path} in the checkpoint is not what it was for batch {batch_id}, and the log has only its digest, as"
                f" it was long. {UNCHANGED} {_OTHERWISE}"
            )
        if name.endswith(COMPACT):
            lines = [*self._repeated(source, int(name.removesuffix(COMPACT))), *lines]
        self._changed[path] = "\n".join(lines).encode()

    def _repeated(self, source: str, number: int) -> list[str]:
        """The version and the lines of all files before a ``.compact`` one, which it repeats."""
        lines: list[str] = []
        before = [(n, name) for n, name in self._numbered(source) if n < number]
        compacts = [n for n, name in before if name.endswith(COMPACT)]
        first = compacts[-1] if compacts else 0
        names = {n: name for n, name in before if n >= first}
        if [*names] != [*range(first, number)]:
            raise Refused(
                f"sources/{source}/{number}{COMPACT} can't be written again: it repeats all files from {first} on, and"
                f" of these the checkpoint has {', '.join(names.values()) or 'none'}. {UNCHANGED} {_OTHERWISE}"
            )
        for name in names.values():
            version, *rest = self._text(f"sources/{source}/{name}").split("\n")
            lines = [*(lines or [version]), *rest]
        return lines or ["v1"]

    def _numbered(self, source: str) -> list[tuple[int, str]]:
        """The files of a file source as they would be, by number; of two with one number the ``.compact`` one last."""
        folder = f"sources/{source}"
        changed = {
            path.rpartition("/")[2]: data for path, data in self._changed.items() if path.startswith(f"{folder}/")
        }
        names = {*self._folder.names(folder), *changed} - {name for name, data in changed.items() if data is None}
        numbered = ((name.removesuffix(COMPACT), name) for name in names)
        return sorted((int(number), name) for number, name in numbered if number.isdecimal())

    def _text(self, path: str) -> str:
        data = self._changed.get(path)
        return self._folder.text(path) if data is None else data.decode()

    def _require_files_kept(self, batch_id: int, reads: Reads) -> None:
        files = kept_files(reads)
        for source, offset in by_source(reads).items():
            last = number(offset)
            if last is None:
                continue
            began = number(self._before(batch_id).get(source))
            needed = {*range(0 if began is None else began + 1, last + 1)}
            if lacking := needed - {int(name.removesuffix(COMPACT)) for name in files.get(source, ())}:
                raise Refused(
                    f"batch {batch_id} read what sources/{source}/{min(lacking)} of the checkpoint lists, and the log"
                    f" does not have that. {UNCHANGED} {_OTHERWISE}"
                )

    def _before(self, batch_id: int) -> Mapping[str, JsonValue]:
        if batch_id - 1 in self._compared.reads:
            return by_source(self._compared.reads[batch_id - 1])
        if batch_id - 1 in self._compared.planned:
            return by_source(parse(self._folder.text(f"offsets/{batch_id - 1}")))
        return {}


def mend(folder: CheckpointFolder, planned: Plan, aside: str) -> None:
    """Make the changes, each durable before the next. What a file was before is kept below the folder ``aside``."""
    for change in planned.changes:
        with contextlib.suppress(FileNotFoundError):
            folder.write(f"{aside}/{change.path}", folder.data(change.path))
    for change in planned.changes:
        if change.data is None:
            folder.remove(change.path)
        else:
            folder.write(change.path, change.data)
