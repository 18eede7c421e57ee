"""Every error that twopc raises, ordered by what the caller must do.

```text
TwoPhaseCommitError
├── Retriable               repeat the call: the target system gave no answer
├── RoundAborted            run the batch again: nothing of it is visible
├── InDoubt                 start again: recovery reads what is decided
├── Fenced                  stop: a newer coordinator has the log
├── Refused                 correct the input: the batch is not decided
│   ├── ConfigurationError  an option, a plugin or a name is wrong
│   ├── SchemaMismatch      a sink can't write a column or a type
│   ├── RecordRefused       a sink can never write a record
│   ├── LogMismatch         the log is another query's, or does not fit the batch
│   └── PoolExhausted       too many task attempts on one machine
└── OperatorRequired        call an operator: the query can't go on by itself
    ├── RepeatedFailure     starts fail again and again, and nothing is decided
    ├── TransactionLost     the target system rolled back a decided transaction
    ├── OutcomeUnknown      whether a decided transaction is committed is unknown
    └── CorruptLog          an entry of the log is not a coordinator's
```

Each class's docstring is its section in the catalog, ``docs/errors.md``: what happened, then what to do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twopc.phases import Phase

DESCRIBED_BY = "python -m pydoc twopc."
"""The command that shows a docstring wherever twopc is installed. Messages do not link to docs/errors.md, which has
more, because pip does not install the documentation."""

_DESTINATION = ("topic", "partition", "column")

_LINK = re.compile(rf"(; see| See) {re.escape(DESCRIBED_BY)}\w+")


class TwoPhaseCommitError(Exception):
    """The root of every error that twopc raises.

    Catch it to handle all of them alike. What to do depends on the class below it.

    Attributes:
        sink: the sink's name in the log.
        batch_id: the batch.
        transaction_id: the transaction's name in the target system.
        phase: the phase that the coordinator was in.

    Each is None where it is unknown. The text ends with the command that describes the error's class.
    """

    sink: str | None = None
    batch_id: int | None = None
    transaction_id: str | None = None
    phase: Phase | None = None

    def __init__(
        self,
        message: str = "",
        *,
        sink: str | None = None,
        batch_id: int | None = None,
        transaction_id: str | None = None,
        phase: Phase | None = None,
    ) -> None:
        super().__init__(message)
        self.fill_in(sink=sink, batch_id=batch_id, transaction_id=transaction_id, phase=phase)

    def fill_in(self, **known: Any) -> None:
        """Set the attributes that are still unknown."""
        for name, value in known.items():
            if value is not None and getattr(self, name) is None:
                setattr(self, name, value)

    @property
    def message(self) -> str:
        """The text without the commands that describe error classes, both of this error and of errors that it
        quotes."""
        return _LINK.sub("", str(next(iter(self.args), "")))

    @property
    def kind(self) -> str:
        """The name of the error's class in this module. For a subclass defined elsewhere, the name of its base class
        here."""
        return next(base.__name__ for base in type(self).__mro__ if base.__module__ == __name__)

    @property
    def link(self) -> str:
        """The command that describes this error, wherever twopc is installed."""
        return f"{DESCRIBED_BY}{self.kind}"

    def __str__(self) -> str:
        message = self.message
        if not message or message.endswith((".", "!", "?")):
            return f"{message} See {self.link}".lstrip()
        return f"{message}; see {self.link}"


class Retriable(TwoPhaseCommitError):
    """The target system could not answer now, for example because a broker restarts.

    Repeat the same call: that is safe, and it may succeed later. The coordinator does this itself.
    """


class RoundAborted(TwoPhaseCommitError):
    """The round failed before its decision and was rolled back. Nothing of it is visible.

    Run the batch again. A restarted query does this itself. Look at the cause if it fails again.
    """


class InDoubt(TwoPhaseCommitError):
    """An append to the commit log failed, and it is unknown whether its entry was written.

    Start again: recovery reads from the log whether the batch is decided. Nothing is lost or written twice.
    """


class Fenced(TwoPhaseCommitError):
    """A newer coordinator has opened the log. This one can no longer decide anything.

    Stop this driver; the newer one goes on. Make sure that only one driver runs the query.
    """


class Refused(TwoPhaseCommitError):
    """The input was refused, and the same input fails again. The batch is not decided.

    Its tasks' writes are rolled back; batches decided earlier stay decided. Correct what the message names, and start
    again.
    """


class ConfigurationError(Refused):
    """An option, a plugin or a name is wrong.

    Correct the option that the message names, and start again.

    Attributes:
        option: the option to correct or leave out, as the user wrote it. None if no single option is wrong.
    """

    def __init__(self, message: str = "", *, option: str | None = None, **known: Any) -> None:
        super().__init__(message, **known)
        self.option = option


class SchemaMismatch(Refused):
    """A column is missing, unknown or of a type that the sink can't write.

    Select, rename or cast the columns in the query, and start again.
    """


class RecordRefused(Refused):
    """A sink can never write a record as it is, or can never write it to its destination.

    Filter or correct the record in the query, and start again. The attributes locate it; the message shows no value of
    it.

    A sink raises this error with the record's position in the record batch. The participant adds the origin of that
    record batch.

    Args:
        reason: what is wrong, and what to do.

    Attributes:
        task: the number of the batch's partition that held the record.
        record: the position of the record among all records that this task wrote to the sink, from 0.
        topic: the record's destination.
        partition: the partition of the topic.
        column: the column with the offending value.
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
        super().__init__(reason, sink=sink)
        self.task = task
        self.record = record
        self.topic = topic
        self.partition = partition
        self.column = column

    def locate(self, sink: str, task: int, before: int) -> None:
        """Add the sink's name, the task, and the number of records that the task wrote before the record batch."""
        self.sink, self.task = sink, task
        self.record = None if self.record is None else before + self.record

    @property
    def message(self) -> str:
        """The record's place as far as it is known, and the reason."""
        return self._told("sink", "task", "record", *_DESTINATION)

    @property
    def reason(self) -> str:
        """The message without the place of the record in its batch."""
        return self._told(*_DESTINATION)

    def _told(self, *names: str) -> str:
        where = [f"{name} {getattr(self, name)!r}" for name in names if getattr(self, name) is not None]
        return f"{', '.join(where)}: {super().message}" if where else super().message


class LogMismatch(Refused):
    """The commit log belongs to another query, or does not match the batch that the query has reached.

    The batch is refused, and none of its records becomes visible. Give each query a log of its own. If the checkpoint
    is older than the log, stop the query and run ``twopc checkpoint repair``.

    When Spark repartitions a query's state, it adds a batch that no sink sees. If nothing was in doubt before, begin a
    new log then, with the batch that the query is at as ``first_batch_id``.
    """


class PoolExhausted(Refused):
    """On one machine, task attempts of the batch, or of newer rounds, hold all transactional ids of a sink.

    The attempt that needed one wrote nothing. Run fewer tasks of a batch per machine, and start again: the next start
    is a new round, which may use the ids.
    """


class OperatorRequired(TwoPhaseCommitError):
    """The query can't continue by itself, for example because that could lose or duplicate records.

    Follow the message. The query stays stopped until an operator has acted.
    """


class RepeatedFailure(OperatorRequired):
    """The same failure occurred at three starts of the query, or for more than two minutes within one start, and no
    batch was decided in between. For a failure that usually passes, such as the loss of a process, the limit is sixty
    different minutes.

    Eight starts that failed in different ways count, too. Correct the cause that the message quotes, and start the
    query again.
    """


class TransactionLost(OperatorRequired):
    """The target system rolled back a transaction that had been decided. Its records are not visible.

    With replay copies, twopc writes the records again: start the query with the same replay copies as before. If the
    message contains ``can be computed again``, start it with ``on_loss="recompute"``. Otherwise write the records by
    other means, then give the transaction up with ``twopc abandon``.
    """


class OutcomeUnknown(OperatorRequired):
    """The target system can't report whether a decided transaction was committed or rolled back.

    Read the target system to see whether the records are there. If they are, give the transaction up with
    ``twopc abandon``; if not, write them by other means first.

    Attributes:
        was_refused_at_first: whether the target system refused this process's first request to commit. If so, the
            transaction was rolled back, unless another process may have requested the commit too.
    """

    def __init__(self, message: str = "", *, was_refused_at_first: bool = False, **known: Any) -> None:
        super().__init__(message, **known)
        self.was_refused_at_first = was_refused_at_first


class CorruptLog(OperatorRequired):
    """An entry of the commit log is not what a coordinator writes. Nothing was changed.

    Restore the entry from a backup or another version of the file, or find the program that writes to the log's place.
    """
