"""What a checkpoint lacks of what its log has decided, and how it gets that back: without Spark, on files as it has."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.advice import raises, told
from twopc.checkpoint.comparison import Comparison, compare
from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.repair import Plan, mend, plan
from twopc.errors import ConfigurationError, LogMismatch, Refused, Retriable
from twopc.log.entries import Decision, decided, opened
from twopc.log.entry_json import parse, serialise
from twopc.transaction import JsonValue
from twopc.transactional_ids import Round

OWNER = "c2f3be89"
INTERVAL = 3
"""Each third file of the file source is a compact one."""


class Query:
    """A checkpoint and its log after some batches, of Kafka and a file source, of which things get lost."""

    def __init__(self, folder: Path, with_files: bool = True, with_state: bool = False) -> None:
        self.path = folder
        self.folder = CheckpointFolder(str(folder))
        self.entries = [opened(None, OWNER)]
        self._with_files = with_files
        self.write("metadata", json.dumps({"id": OWNER}))
        if with_state:
            self.write("state/0/0/1.delta", "state")

    def write(self, path: str, text: str) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(text)
        file = self.path / path
        file.with_name(f".{file.name}.crc").write_text("a checksum of just this")

    def plan(self, batch_id: int, end: int | None = None) -> None:
        """What Spark writes before a batch. ``end``: in its topic."""
        metadata = {"batchWatermarkMs": 10 * batch_id, "batchTimestampMs": 1000 + batch_id, "conf": {}}
        lines = ["v1", _line(metadata), _line({"orders": {"0": 100 * batch_id + 100 if end is None else end}})]
        if self._with_files:
            number = batch_id + 2  # the source counts by itself
            lines.append(_line({"logOffset": number}))
            for n in range(3) if batch_id == 0 else [number]:
                self.take_up(n)
        self.write(f"offsets/{batch_id}", "\n".join(lines))

    def take_up(self, number: int, name: str = "in") -> None:
        """What Spark's file source writes when it finds new files."""
        own = [_line({"path": f"{name}/{number}-{n}", "timestamp": 1, "batchId": number}) for n in range(2)]
        if (number + 1) % INTERVAL:
            self.write(f"sources/1/{number}", "\n".join(["v1", *own]))
            return
        repeated: list[str] = []
        before = number - INTERVAL
        names = [f"{before}.compact"] if before >= 0 else []
        for each in [*names, *map(str, range(before + 1, number))]:
            repeated += (self.path / f"sources/1/{each}").read_text().split("\n")[1:]
        self.write(f"sources/1/{number}.compact", "\n".join(["v1", *repeated, *own]))

    def note(self, batch_id: int) -> None:
        """What Spark writes after a batch."""
        self.write(f"commits/{batch_id}", f'v1\n{{"nextBatchWatermarkMs":{10 * batch_id + 10}}}')

    def decide(self, batch_id: int, with_reads: bool = True) -> None:
        reads = self.folder.reads(batch_id) if with_reads else None
        entry = decided(self.entries[-1], Decision(Round(1, batch_id), {}), reads)
        self.entries.append(parse(serialise(entry), "here"))

    def run(self, batches: int, with_reads: bool = True) -> Query:
        for batch_id in range(batches):
            self.plan(batch_id)
            self.decide(batch_id, with_reads)
            self.note(batch_id)
        return self

    def lose(self, *paths: str) -> None:
        for path in paths:
            file = self.path / path
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink()

    def lose_batches(self, *batches: int) -> None:
        """All that Spark wrote of them."""
        for batch_id in batches:
            number = batch_id + 2
            name = number if (number + 1) % INTERVAL else f"{number}.compact"
            files = [f"sources/1/{name}"] if self._with_files else []
            self.lose(f"offsets/{batch_id}", f"commits/{batch_id}", *files)

    def compared(self) -> Comparison:
        return compare(self.folder, self.entries)

    def planned(self) -> Plan:
        return plan(self.folder, self.compared())

    def repair(self) -> Plan:
        planned = self.planned()
        mend(self.folder, planned, "aside")
        assert self.planned().changes == ()
        for change in planned.changes:  # no checksum of what was there before
            file = self.path / change.path
            assert not file.with_name(f".{file.name}.crc").exists()
        return planned

    def contents(self, without: str = "") -> dict[str, str]:
        """All that Spark reads."""
        files = {str(file.relative_to(self.path)): file for file in self.path.rglob("*") if file.is_file()}
        return {
            name: file.read_text()
            for name, file in files.items()
            if not name.startswith("aside/") and not name.endswith(".crc") and name != without
        }


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path).run(6)


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_query_without_state_gets_all_back_and_goes_on_with_the_newest_batch(query: Query, lost: int) -> None:
    before = query.contents(without="commits/5")
    query.lose_batches(*range(6 - lost, 6))
    assert query.compared().missing == [*range(6 - lost, 6)]
    planned = query.repair()
    assert (planned.goes_on_with, planned.remaining) == (5, 0)
    assert query.contents() == before


def test_a_query_with_state_gets_its_batches_back_one_by_one(tmp_path: Path) -> None:
    query = Query(tmp_path, with_state=True).run(6)
    before = query.contents()
    query.lose_batches(3, 4, 5)
    for batch_id, remaining in ((3, 2), (4, 1), (5, 0)):
        planned = query.repair()
        assert (planned.goes_on_with, planned.remaining) == (batch_id, remaining)
        assert {f"offsets/{batch_id + 1}", f"commits/{batch_id}"}.isdisjoint(query.contents())
        query.note(batch_id)  # Spark has evaluated it
        if remaining:
            query.plan(batch_id + 1, end=5000)  # and plans the next from what there is now
            query.take_up(batch_id + 3, "other")
    assert query.contents() == before
    assert query.planned() == Plan(())


def test_what_spark_has_planned_anew_is_replaced_and_kept_aside(query: Query) -> None:
    before = query.contents(without="commits/5")
    query.lose_batches(5)
    query.plan(5, end=5000)
    query.take_up(7, "other")
    query.take_up(8, "other")
    [mismatch] = query.compared().mismatches
    assert [str(each) for each in mismatch.found][:2] == [
        "sources.0.orders.0: decided 600, now 5000 (+4400)",
        "files.1.7.1.path: decided 'in/7-0', now 'other/7-0'",
    ]
    assert mismatch.records == {"0": 4400}
    wrong = query.contents()
    query.repair()
    assert query.contents() == before
    for path in ("offsets/5", "sources/1/7", "sources/1/8.compact"):
        assert (query.path / "aside" / path).read_text() == wrong[path]


def test_files_that_a_power_cut_has_emptied_are_replaced(query: Query) -> None:
    before = query.contents(without="commits/5")
    for path in ("offsets/4", "offsets/5", "commits/4", "commits/5"):
        query.write(path, "")
    assert query.compared().noted == 3
    query.repair()
    assert query.contents() == before


@pytest.mark.parametrize("path", ["sources/1/7", "offsets/5", "offsets/4"])
def test_what_is_lost_of_a_batch_that_is_done_comes_back(query: Query, path: str) -> None:
    before = query.contents()
    query.lose(path)
    assert query.repair().goes_on_with is None
    assert query.contents() == before


def test_the_batch_before_the_newest_comes_back_where_a_newer_plan_is_cut_off(query: Query) -> None:
    before = query.contents()
    query.write("offsets/6", "")
    query.lose("offsets/4")
    query.repair()
    assert query.contents() == before


@pytest.mark.parametrize("batch_id", [5, 6])
def test_a_plan_that_a_power_cut_has_cut_off_amid_an_offset_is_replaced_or_put_aside(
    query: Query, batch_id: int
) -> None:
    before = query.contents()
    query.plan(6)
    planned = query.contents()[f"offsets/{batch_id}"]
    query.write(f"offsets/{batch_id}", planned[:-1])
    assert query.compared().cut_off == {f"offsets/{batch_id}"}
    assert query.repair().goes_on_with is None
    expected = before if batch_id == 6 else {**query.contents(), f"offsets/{batch_id}": planned}
    assert query.contents() == expected


def test_an_offset_of_a_source_that_writes_no_json_is_whole_if_it_is_as_decided(tmp_path: Path) -> None:
    query = Query(tmp_path, with_files=False).run(5)
    query.write("offsets/5", 'v1\n{"conf":{}}\nplace:5')
    query.decide(5)
    query.note(5)
    assert query.planned() == Plan(())


def test_where_the_next_batch_begins_comes_back_too(query: Query) -> None:
    before = query.contents(without="commits/5")
    query.lose("offsets/4", "offsets/5", "commits/5")
    query.repair()
    assert query.contents() == before


def test_files_that_a_compact_one_repeats_need_not_be_there(query: Query) -> None:
    query.lose("sources/1/3", "sources/1/4")
    assert query.planned() == Plan(())


def test_a_checkpoint_of_the_same_age_is_left_as_it_is(query: Query) -> None:
    assert query.planned() == Plan(())
    query.plan(6)  # a batch that is not decided is Spark's own affair
    assert query.planned() == Plan(())


def test_a_decided_batch_that_spark_has_not_noted_needs_no_repair(query: Query) -> None:
    query.lose("commits/5")
    assert query.planned() == Plan((), goes_on_with=5)


def test_what_follows_a_batch_that_comes_again_is_planned_anew(query: Query) -> None:
    query.plan(6)
    query.lose("commits/5")
    assert [change.path for change in query.repair().changes] == ["offsets/6", "sources/1/8.compact"]


def test_the_newest_decided_batch_comes_again_where_it_is_noted_with_other_input(query: Query) -> None:
    """It was planned anew beside its ``commits/5``, and the driver died before it was compared."""
    before = query.contents(without="commits/5")
    query.plan(5, end=5000)
    query.plan(6, end=9000)
    assert query.repair().goes_on_with == 5
    assert query.contents() == before


@pytest.mark.parametrize("decided", [0, 6], ids="{} decided".format)
@pytest.mark.parametrize("damage", [None, "", 'v1\n{"path":', "v1\n\0\0\0"], ids=repr)
def test_an_undecided_plan_whose_list_of_files_spark_cannot_read_is_planned_anew(
    tmp_path: Path, decided: int, damage: str | None
) -> None:
    query = Query(tmp_path).run(decided)
    query.plan(decided)
    assert query.planned() == Plan(())
    path = f"sources/1/{decided + 2}.compact"
    query.lose(path) if damage is None else query.write(path, damage)
    before = {path: text for path, text in query.contents().items() if path != "metadata"}
    query.repair()
    undecided = {f"offsets/{decided}", path} if decided else before.keys()
    left = {path: text for path, text in query.contents().items() if path != "metadata"}
    assert left == {name: before[name] for name in before.keys() - undecided}


def test_a_list_that_no_plan_names_yet_is_discovered_anew(query: Query) -> None:
    query.write("sources/1/8.compact", "")
    assert [change.path for change in query.repair().changes] == ["sources/1/8.compact"]


def test_a_cut_off_list_of_a_batch_that_is_done_comes_back_from_the_log(query: Query) -> None:
    before = query.contents()
    query.write("sources/1/7", "v1")
    query.write("sources/1/6", "")
    query.repair()
    assert query.contents() == before


def test_without_files_two_batches_are_enough_however_old_the_checkpoint(tmp_path: Path) -> None:
    query = Query(tmp_path, with_files=False).run(9)
    before = query.contents(without="commits/8")
    query.lose_batches(*range(2, 9))
    query.entries = query.entries[-2:]  # the log has pruned the others
    assert query.repair().goes_on_with == 8
    gone = {f"{folder}/{n}" for n in range(2, 7) for folder in ("offsets", "commits")}
    assert query.contents() == {path: text for path, text in before.items() if path not in gone}


def without_reads(query: Query) -> None:
    query.entries = Query(query.path).run(6, with_reads=False).entries
    query.lose_batches(5)


def without_reads_of_a_plan_that_is_cut_off(query: Query) -> None:
    query.entries = Query(query.path).run(6, with_reads=False).entries
    query.write("offsets/5", "v1")


def pruned(query: Query) -> None:
    query.entries = query.entries[-2:]
    query.lose_batches(3, 4, 5)


def noted_otherwise(query: Query) -> None:
    query.plan(4, end=5000)


def another_query(query: Query) -> None:
    query.write("metadata", '{"id":"another"}')


def older_log(query: Query) -> None:
    query.entries = query.entries[:-1]


def nothing_decided(query: Query) -> None:
    query.entries = query.entries[:1]


def a_list_that_the_log_has_pruned(query: Query) -> None:
    query.write("sources/1/6", "")
    query.entries = query.entries[-1:]


def no_checkpoint(query: Query) -> None:
    shutil.rmtree(query.path)


def no_compact_file(query: Query) -> None:
    query.lose_batches(4, 5)
    query.lose_batches(3)
    query.lose("sources/1/4")
    query.entries = query.entries[:1] + query.entries[-3:]


def a_digest_alone(query: Query) -> None:
    reads = query.entries[-1].reads
    assert isinstance(reads, dict)
    files: JsonValue = {"1": {"7": {"bytes": 5, "sha256": "0"}}}
    query.entries[-1] = decided(query.entries[-2], Decision(Round(1, 5), {}), {**reads, "files": files})
    query.lose_batches(5)


def files_unknown(query: Query) -> None:
    reads = query.entries[-1].reads
    assert isinstance(reads, dict)
    without = {name: value for name, value in reads.items() if name != "files"}
    query.entries[-1] = decided(query.entries[-2], Decision(Round(1, 5), {}), without)
    query.lose_batches(5)


@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        (without_reads, Refused, "batch 5 must be planned as it was decided, .*of no batch.*Restore a newer backup"),
        (without_reads_of_a_plan_that_is_cut_off, Refused, "batch 5 must be planned as it was decided, .*of no batch"),
        (pruned, Refused, "batch 3 must be planned as it was decided, .*only from batch 4 on.*Restore a newer backup"),
        (
            noted_otherwise,
            Refused,
            "has noted batch 4 as done, with other input .*decided 500, now 5000.*correct the target systems",
        ),
        (another_query, LogMismatch, "belongs to query another, and the log to query c2f3be89"),
        (older_log, LogMismatch, "has noted batch 5, and the log has decided batch 4: .*Restore the newer log"),
        (nothing_decided, LogMismatch, "has noted batch 5, and the log has decided no batch.*with first_batch_id=6"),
        (a_list_that_the_log_has_pruned, Refused, "can't start from sources/1/6 .*Restore a newer backup"),
        (no_checkpoint, ConfigurationError, "Is this the query's checkpoint folder"),
        (
            no_compact_file,
            Refused,
            r"sources/1/5\.compact can't be restored: .*from 2 on, .* has 2\.compact, 3\. .*Restore a newer",
        ),
        (a_digest_alone, Refused, "sources/1/7 in the checkpoint is not what it was for batch 5.*only its digest"),
        (files_unknown, Refused, "batch 5 read what sources/1/7 of the checkpoint lists, and the log does not have"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_can_not_be_repaired_exactly_is_refused_with_a_way_out(
    query: Query, case: Callable[[Query], None], error: type[Exception], said: str
) -> None:
    case(query)
    before = query.contents() if query.path.exists() else {}
    with pytest.raises(error, match=said) as refused:
        query.planned()
    assert type(refused.value) is error
    assert not before or query.contents() == before


def test_a_store_that_does_not_answer_is_no_wrong_configuration(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OSError(errno.ETIMEDOUT, "away")

    monkeypatch.setattr(CheckpointFolder, "text", away)
    with pytest.raises(Retriable, match=r"query's id can't be read .*away"):
        query.compared()
    with pytest.raises(Retriable, match=r"does not say what the batch reads .*away"):
        query.folder.newest()


RESTORED: dict[str, tuple[Callable[[Query], None], str]] = {
    "must be planned as it was decided, and the log does not have its input": (without_reads, "newer backup"),
    "and the log has decided batch …: the log is older than": (older_log, "Restore the newer log"),
    "and the log has decided no batch": (nothing_decided, "If the log was lost, restore it"),
}
"""The words of an error → what leads to it, and what it advises to restore."""


@pytest.mark.advice(*RESTORED)
@pytest.mark.parametrize("words", RESTORED)
def test_a_query_goes_on_when_what_the_message_names_was_restored(words: str, query: Query) -> None:
    case, advice = RESTORED[words]
    entries, files = query.entries, query.contents()
    case(query)
    with raises(words) as refused:
        query.planned()
    told(refused.value, advice)
    if case is without_reads:
        for path, text in files.items():
            query.write(path, text)
    else:
        query.entries = entries
    assert query.planned().changes == ()


def test_after_each_change_the_next_start_goes_on_or_is_refused(query: Query) -> None:
    """A repair that is broken off may be run again, and comes to the same end."""
    before = query.contents(without="commits/5")
    query.lose_batches(3, 4, 5)
    query.plan(3, end=5000)
    steps = len(query.planned().changes)
    for _ in range(steps):
        [first, *_] = query.planned().changes
        mend(query.folder, Plan((first,)), "aside")
    assert query.planned() == Plan((), goes_on_with=5)
    assert query.contents() == before
