"""Every error that twopc raises, ordered by what the caller must do.

```text
TwoPhaseCommitError
├── Retriable               repeat the same call: the target could not answer now
├── RoundAborted            run the batch again: its round was rolled back, nothing of it is visible
├── InDoubt                 start again: whether the batch is decided is not known here; recovery reads it from the log
├── Fenced                  stop: a newer coordinator has this log and goes on
├── Refused                 correct the input and start again: nothing was decided
│   ├── ConfigurationError  an option, a plugin or a name
│   ├── SchemaMismatch      a column or a type that a sink can't write
│   ├── RecordRefused       a record that a sink can't write, however often it is tried
│   ├── LogMismatch         the log belongs to another query, or the batch is not the next one
│   └── PoolExhausted       every transactional id that this batch could use is in doubt
└── OperatorRequired        call a person: going on could lose or double records
    ├── TransactionLost     the target rolled back a transaction after it was decided
    ├── OutcomeUnknown      the target can't say what became of a decided transaction
    └── CorruptLog          an entry of the commit log is not what a coordinator writes
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TwoPhaseCommitError(Exception):
    """Root of every error that twopc raises."""


class Retriable(TwoPhaseCommitError):
    """The target could not answer now. The same call may succeed later, and repeating it is safe."""


class RoundAborted(TwoPhaseCommitError):
    """The round was rolled back before it was decided. Nothing of it is visible; run the batch again."""


class InDoubt(TwoPhaseCommitError):
    """An append to the commit log has an unknown outcome. Start again: recovery reads the outcome."""


class Fenced(TwoPhaseCommitError):
    """A newer coordinator has opened the log. This one can decide nothing any more and must stop."""


class Refused(TwoPhaseCommitError):
    """The input was refused before anything was decided. Correct it and start again: the same input fails again."""


class ConfigurationError(Refused):
    """An option, a plugin or a name is wrong."""


class SchemaMismatch(Refused):
    """A column is missing, unknown or of a type that the sink can't write."""


class RecordRefused(Refused):
    """A record that can't be written as it is, or not to where it is to go. Its message shows no value of it.

    A sink raises it with the record's position in the record batch; the participant adds where that batch comes from.

    Args:
        reason: what is wrong, and what to do.

    Attributes:
        sink: the name of the sink.
        task: which of the batch's partitions held the record.
        record: its position among the records that this task wrote to the sink, from 0.
        topic: where it was to go.
        partition: which partition of the topic.
        column: what holds the value at fault.

    Each is None where it is not known.
    """

    def __init__(
        self,
        reason: str,
        *,
        sink: str | None = None,
        task: int | None = None,
        record: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.sink = sink
        self.task = task
        self.record = record
        self.topic = topic
        self.partition = partition
        self.column = column

    def locate(self, sink: str, task: int, before: int) -> None:
        """Add the sink's name, the task, and the number of records that the task wrote before the record batch."""
        self.sink, self.task = sink, task
        self.record = None if self.record is None else before + self.record

    def __str__(self) -> str:
        names = ("sink", "task", "record", "topic", "partition", "column")
        where = [f"{name} {getattr(self, name)!r}" for name in names if getattr(self, name) is not None]
        return f"{', '.join(where)}: {self.args[0]}" if where else str(self.args[0])


class LogMismatch(Refused):
    """The commit log belongs to another query, or the batch is neither the last decided nor the next."""


class PoolExhausted(Refused):
    """Every transactional id that the batch could use is held by a transaction in doubt."""


class OperatorRequired(TwoPhaseCommitError):
    """Going on could lose or double records. A person decides."""


class TransactionLost(OperatorRequired):
    """The target rolled back a transaction that had been decided. Its records are not visible."""


class OutcomeUnknown(OperatorRequired):
    """The target can't say whether a decided transaction was committed or rolled back.

    Attributes:
        was_refused_at_first: this process has asked for the commit once, and the target refused it. So the transaction
            was rolled back, if no other process can have asked for its commit.
    """

    def __init__(self, message: str = "", *, was_refused_at_first: bool = False) -> None:
        super().__init__(message)
        self.was_refused_at_first = was_refused_at_first


class CorruptLog(OperatorRequired):
    """An entry of the commit log is not what a coordinator writes. Nothing was changed."""


def worst_of(errors: Sequence[Exception]) -> Exception:
    """Return the error that is the least likely to go away by itself."""
    return max(errors, key=lambda error: (isinstance(error, OperatorRequired), not isinstance(error, Retriable)))
