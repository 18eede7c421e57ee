"""The checker compares what was sent with what readers saw. It knows nothing of twopc, of its log or of its names.

It knows the history of each query: which batches were acknowledged, what they contain, and which attempts had voted
when. A batch may become visible after a vote of all its tasks, and then only with the records of that vote's attempts,
in every target system.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.campaigns.jepsen.reader import Sighting
from tests.campaigns.jepsen.workload import TASKS, Votes, size

COUNTS = ("lost", "duplicates", "aborted_reads", "torn", "reordered")
EXAMPLES = 10


@dataclass(frozen=True)
class Sent:
    """What a query wrote.

    Attributes:
        batches: how many batches were acknowledged. All records of these must be visible.
        votes: which attempts may be visible, and since when.
        most: the most records of a task; see ``workload.size``.
    """

    batches: int
    votes: Sequence[Votes]
    most: int

    @property
    def records(self) -> int:
        return sum(size(batch, task, self.most) for batch in range(self.batches) for task in range(TASKS))


@dataclass
class Found:
    """What one reader saw that it should not have, or did not see.

    Attributes:
        counts: records, but batches for ``torn``.
        examples: the first few of each kind.
        attempts: batch → the attempts of which records were visible.
    """

    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, kind: str, example: object, count: int = 1) -> None:
        if count:
            self.counts[kind] += count
            if len(self.examples[kind]) < EXAMPLES:
                self.examples[kind].append(str(example))

    def report(self) -> dict[str, object]:
        return {"records": self.records, **{kind: self.counts[kind] for kind in COUNTS}, "examples": self.examples}


def check(sent: Sent, seen: Iterable[Sighting], is_ordered: bool) -> Found:
    """Compare what one reader saw with what was sent.

    Args:
        sent: what was sent.
        seen: each record, in the order in which the reader saw it.
        is_ordered: whether that order, within a partition, must be the order in which the records were sent.
    """
    found = Found()
    since = _since(sent)
    bits: dict[tuple[int, int], int] = defaultdict(int)  # batch and task → a bit for each number that was seen
    order = _Order()
    for sighting in seen:
        batch, task, number, attempt = record = sighting.record
        found.records += 1
        found.attempts[batch].add(attempt)
        found.add("duplicates", record, bits[batch, task] >> number & 1)
        bits[batch, task] |= 1 << number
        found.add("aborted_reads", record, sighting.at < since.get((batch, task, attempt), float("inf")))
        if is_ordered:
            found.add("reordered", record, not order.continues(sighting))
    for batch in range(sent.batches):
        for task in range(TASKS):
            missing = size(batch, task, sent.most) - bits[batch, task].bit_count()
            found.add("lost", f"{missing} records of batch {batch}, task {task}", missing)
    for batch, attempts in found.attempts.items():
        found.add("torn", f"batch {batch}", not _is_whole(sent, batch, attempts, bits))
    return found


def check_together(found: Mapping[str, Found]) -> Found:
    """Compare the readers: a batch that one of them saw was seen by all of them, with the same attempts."""
    together = Found()
    for batch in sorted({batch for each in found.values() for batch in each.attempts}):
        seen = {frozenset(each.attempts.get(batch, ())) for each in found.values()}
        together.add("torn", f"batch {batch}: not the same in {', '.join(found)}", len(seen) > 1)
    return together


def _since(sent: Sent) -> dict[tuple[int, int, str], float]:
    """Return since when each attempt may be visible."""
    return {(vote.batch, task, attempt): vote.at for vote in sent.votes for task, attempt in enumerate(vote.attempts)}


def _is_whole(sent: Sent, batch: int, attempts: set[str], bits: Mapping[tuple[int, int], int]) -> bool:
    """Return whether all records of a batch are there, and those of one vote."""
    is_complete = all(bits[batch, task].bit_count() >= size(batch, task, sent.most) for task in range(TASKS))
    return is_complete and any(vote.batch == batch and set(vote.attempts) == attempts for vote in sent.votes)


class _Order:
    """Offsets, batches and a task's numbers never go back within a partition."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._numbers: dict[tuple[int, int], tuple[int, int]] = {}

    def continues(self, sighting: Sighting) -> bool:
        partition, offset, _, record = sighting
        last_offset, last_batch = self._newest.get(partition, (-1, -1))
        of_batch, last_number = self._numbers.get((partition, record.task), (-1, -1))
        self._newest[partition] = offset, record.batch
        self._numbers[partition, record.task] = record.batch, record.number
        return (
            offset > last_offset
            and record.batch >= last_batch
            and (record.batch != of_batch or record.number > last_number)
        )
