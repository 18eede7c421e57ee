"""Repair of a checkpoint: restores the files that it lacks for batches that its log has decided.

Once the decided ``offsets/N`` is restored, Spark repeats exactly batch N. The log recognizes the batch, so nothing is
written again, and state and watermark advance as if nothing had been lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from twopc.checkpoint.comparison import UNCHANGED, Comparison, kept_now, noted_entry
from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.offsets import Reads, by_source, parse, text_of, watermark_ms
from twopc.checkpoint.source_files import COMPACT, file_lines, kept_files, number, stands_for_files
from twopc.errors import LogMismatch, Refused
from twopc.log.batch_identity import shown
from twopc.transaction import JsonValue

_OTHERWISE = (
    "Restore a newer backup of the checkpoint; or start with a new checkpoint and a new log, and what the query reads"
    " again is written again."
)


@dataclass(frozen=True, slots=True)
class Change:
    """A checkpoint file to write, or to put aside if ``data`` is None."""

    path: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for a checkpoint's repair."""

    # The changes, in order. After each of them, a start of the query continues without loss or is refused.
    changes: tuple[Change, ...]
    # The decided batch that the query evaluates again afterwards, or None if the next batch is new.
    goes_on_with: int | None = None
    # How many decided batches follow that one. If any, the query stops after it and needs another repair.
    remaining: int = 0


def plan(folder: CheckpointFolder, compared: Comparison) -> Plan:
    """Plan how to restore the checkpoint, so that the query continues exactly where it was. Raises LogMismatch if the
    log is older than the checkpoint. Raises Refused, with advice, if the missing parts are not known exactly."""
    noted = -1 if compared.noted is None else compared.noted
    decided = -1 if compared.decided is None else compared.decided
    _require_log_of_that_age(compared, decided, noted)
    noted_otherwise = _noted_otherwise(compared, decided)
    changes = _Changes(folder, compared)
    changes.put_aside(path for path in sorted(compared.cut_off) if path.startswith("commits/"))
    if noted_otherwise:
        changes.put_aside([f"commits/{decided}"])
        noted = decided - 1
    changes.restore_files_of_noted()
    if noted == decided:
        if not compared.cut_off.isdisjoint(changes.following(decided)):
            changes.put_aside_what_follows(decided)
        for batch_id in _starts_from(compared, decided) if decided >= 0 else ():
            if not compared.has_whole(batch_id):
                _require_known(compared, batch_id)
                changes.plan_again(batch_id)
        changes.require_lists()
        return Plan(changes.listed())
    batches = _to_restore(compared, decided, noted)
    changes.put_aside_what_follows(batches[-1])
    for batch_id in batches:
        changes.plan_again(batch_id)
        if noted < batch_id < batches[-1]:
            changes.note(batch_id)
    changes.require_lists()
    return Plan(changes.listed(), batches[-1], decided - batches[-1])


def _starts_from(compared: Comparison, decided: int) -> list[int]:
    """Return the batches whose plans Spark reads at its start if the newest decided batch is done: the newest, and the
    one before it. If a backup was restored under a running driver, the checkpoint may have only the newest."""
    before = decided - 1
    is_newest = not any(n > decided and compared.has_whole(n) for n in compared.planned)
    return [before, decided] if is_newest and before in compared.reads else [decided]


def _require_log_of_that_age(compared: Comparison, decided: int, noted: int) -> None:
    newest = max([noted, *(n - 1 for n in compared.planned)])
    if newest <= decided:
        return
    if decided < 0:
        raise LogMismatch(
            f"the checkpoint has noted batch {newest}, and the log has decided no batch. {UNCHANGED} If the log was"
            " lost, restore it: the batches that it had decided would be written twice. If the query ran without twopc"
            f" until then, start it with first_batch_id={newest + 1}."
        )
    raise LogMismatch(
        f"the checkpoint has noted batch {newest}, and the log has decided batch {decided}: the log is older than the"
        f" checkpoint. {UNCHANGED} Restore the newer log: the batches that it has decided since would be written twice."
    )


def _noted_otherwise(compared: Comparison, decided: int) -> bool:
    """Return whether Spark recorded the newest decided batch as done with other input. This happens if Spark planned
    the batch again and the driver died before the comparison. Nothing has been written since. Raises Refused if this
    happened to an earlier batch."""
    found = [mismatch for mismatch in compared.mismatches if mismatch.is_noted and mismatch.read_otherwise]
    for mismatch in found:
        if mismatch.batch_id < decided:
            raise Refused(
                f"Spark has noted batch {mismatch.batch_id} as done, with other input than it was decided with:"
                f" {shown(mismatch.found)}. {UNCHANGED} The query has continued from there, so the records between the"
                " two were lost or written twice: compare the source with the target systems there, and correct the"
                " target systems by other means."
            )
    return bool(found)


def _to_restore(compared: Comparison, decided: int, noted: int) -> list[int]:
    """Return the batches whose decided plans must be restored, in ascending order. A stateful query must evaluate every
    batch, so its batches are restored one at a time. A stateless query only has to evaluate the last batch."""
    batches = [noted + 1] if compared.has_state else [*range(noted + 1, decided + 1)]
    if noted >= 0 and not compared.has_whole(noted):
        batches = [noted, *batches]  # its end is where the next batch begins
    unknown = [n for n in batches if n not in compared.reads]
    if unknown and not compared.has_state and not any(map(stands_for_files, compared.reads.values())):
        # The offsets of the two newest batches suffice, because no source keeps lists of the files that it has seen.
        known = [n for n in batches if n > unknown[-1]]
        if len(known) > 1:
            return known
    for batch_id in batches:
        _require_known(compared, batch_id)
    return batches


def _require_known(compared: Comparison, batch_id: int) -> None:
    if batch_id not in compared.reads:
        kept = f"only from batch {min(compared.reads)} on" if compared.reads else "of no batch"
        raise Refused(
            f"batch {batch_id} must be planned as it was decided, and the log does not have its input. It has the input"
            f" {kept}: older entries are pruned, or were written by a version that did not keep it. {UNCHANGED}"
            f" {_OTHERWISE}"
        )


class _Changes:
    """The changes planned so far, in order, and the state of the checkpoint after them."""

    def __init__(self, folder: CheckpointFolder, compared: Comparison) -> None:
        self._folder = folder
        self._compared = compared
        self._differing = {mismatch.batch_id for mismatch in compared.mismatches}
        self._changed: dict[str, bytes | None] = {}
        self._discovered_anew: set[str] = set()

    def listed(self) -> tuple[Change, ...]:
        return tuple(Change(path, data) for path, data in self._changed.items())

    def put_aside(self, paths: Iterable[str]) -> None:
        self._changed |= dict.fromkeys(paths)

    def put_aside_what_follows(self, batch_id: int) -> None:
        """Put aside the plans after a batch, and the lists of files that file sources have discovered since. Spark will
        plan these batches and discover these files again."""
        following = self.following(batch_id)
        self._discovered_anew |= {*following}
        self.put_aside(path for path in following if path in self._changed or self._folder.size(path) is not None)

    def following(self, batch_id: int) -> list[str]:
        """Return the paths that ``put_aside_what_follows`` puts aside, newest first, and any missing lists."""
        found = [f"offsets/{later}" for later in reversed(self._compared.planned) if later > batch_id]
        ends, newest = self._before(batch_id + 1), self._compared.newest
        for source, offset in (newest or ends).items():
            if number(offset) is None:
                continue
            if batch_id >= 0 and source not in ends:
                _require_known(self._compared, batch_id)
            last = number(ends.get(source))
            lists = {*self._numbered(source), *self._cut_off(source)}
            newer = sorted((n, name) for n, name in lists if last is None or n > last)
            found += (f"sources/{source}/{name}" for _, name in reversed(newer))
        return found

    def require_lists(self) -> None:
        """Check that Spark can read the lists of files that it starts from. Raises Refused if a list is missing or cut
        off and the log does not record its content."""
        lists = {path for path in self._compared.cut_off if path.startswith("sources/")}
        if left := sorted(lists - self._changed.keys() - self._discovered_anew):
            raise Refused(
                f"Spark can't start from {left[0]} of the checkpoint, which is missing or cut off, and the log does not"
                f" keep what it was. {UNCHANGED} {_OTHERWISE}"
            )

    def plan_again(self, batch_id: int) -> None:
        """Restore the decided plan of a batch."""
        reads = self._compared.reads[batch_id]
        self._require_files_kept(batch_id, reads)
        self._restore_files(batch_id)
        if batch_id in self._differing or batch_id not in self._compared.planned:
            self._changed[f"offsets/{batch_id}"] = text_of(reads).encode()

    def restore_files_of_noted(self) -> None:
        """Restore the file lists that a source has lost for completed batches. Without these lists, the source would
        read the input of those batches again."""
        for mismatch in self._compared.mismatches:
            if mismatch.is_noted:
                self._restore_files(mismatch.batch_id)

    def note(self, batch_id: int) -> None:
        """Record a batch as done, in the format of the newest batch that Spark recorded."""
        noted = self._compared.noted
        version, value = (None if noted is None else noted_entry(self._folder, noted)) or ("v1", {})
        value = {**value, "nextBatchWatermarkMs": watermark_ms(self._compared.reads[batch_id + 1])}
        self._changed[f"commits/{batch_id}"] = f"{version}\n{json.dumps(value, separators=(',', ':'))}".encode()

    # Files of file sources. -----------------------------------------------------------------------------------------

    def _restore_files(self, batch_id: int) -> None:
        for source, files in kept_files(self._compared.reads[batch_id]).items():
            for name, kept in files.items():
                if kept_now(self._folder, source, name, kept) != kept:
                    self._restore(batch_id, source, name, kept)

    def _restore(self, batch_id: int, source: str, name: str, kept: JsonValue) -> None:
        path = f"sources/{source}/{name}"
        lines = file_lines(kept)
        if lines is None:
            raise Refused(
                f"{path} in the checkpoint is not what it was for batch {batch_id}, and the log has only its digest,"
                f" because it was long. {UNCHANGED} {_OTHERWISE}"
            )
        if name.endswith(COMPACT):
            lines = [*self._repeated(source, int(name.removesuffix(COMPACT))), *lines]
        self._changed[path] = "\n".join(lines).encode()

    def _repeated(self, source: str, number: int) -> list[str]:
        """Return the part of a compact file that repeats earlier files: the version, and the lines of all files before
        it."""
        lines: list[str] = []
        before = [(n, name) for n, name in self._numbered(source) if n < number]
        compacts = [n for n, name in before if name.endswith(COMPACT)]
        first = compacts[-1] if compacts else 0
        names = {n: name for n, name in before if n >= first}
        if [*names] != [*range(first, number)]:
            raise Refused(
                f"sources/{source}/{number}{COMPACT} can't be restored: it repeats all files from {first} on, and of"
                f" these the checkpoint has {', '.join(names.values()) or 'none'}. {UNCHANGED} {_OTHERWISE}"
            )
        for name in names.values():
            version, *rest = self._text(f"sources/{source}/{name}").split("\n")
            lines = [*(lines or [version]), *rest]
        return lines or ["v1"]

    def _numbered(self, source: str) -> list[tuple[int, str]]:
        """Return a file source's files after the changes, by number. A compact file follows a plain one with the same
        number."""
        folder = f"sources/{source}"
        changed = {
            path.rpartition("/")[2]: data for path, data in self._changed.items() if path.startswith(f"{folder}/")
        }
        names = {*self._folder.names(folder), *changed} - {name for name, data in changed.items() if data is None}
        numbered = ((name.removesuffix(COMPACT), name) for name in names)
        return sorted((int(number), name) for number, name in numbered if number.isdecimal())

    def _cut_off(self, source: str) -> Iterator[tuple[int, str]]:
        """Yield a file source's lists that are missing or that Spark can't read."""
        for path in self._compared.cut_off:
            folder, _, name = path.rpartition("/")
            if folder == f"sources/{source}":
                yield int(name.removesuffix(COMPACT)), name

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
        if self._compared.has_whole(batch_id - 1):
            return by_source(parse(self._folder.text(f"offsets/{batch_id - 1}")))
        return {}


def mend(folder: CheckpointFolder, planned: Plan, aside: str) -> None:
    """Apply the changes, each durable before the next. The previous files are kept in the folder ``aside``."""
    for change in planned.changes:
        with contextlib.suppress(FileNotFoundError):
            folder.write(f"{aside}/{change.path}", folder.data(change.path))
    for change in planned.changes:
        if change.data is None:
            folder.remove(change.path)
        else:
            folder.write(change.path, change.data)
