"""Every error that twopc raises, ordered by what the caller must do.

```text
TwoPhaseCommitError
├── Retriable               repeat the same call: the target could not answer now
├── RoundAborted            run the batch again: its round was rolled back, nothing of it is visible
├── InDoubt                 start again: whether the batch is decided is not known here; recovery reads it from the log
├── Fenced                  stop: a newer coordinator has this log and goes on
├── Refused                 correct the input and start again: nothing was written
│   ├── ConfigurationError  an option, a plugin or a name
│   ├── SchemaMismatch      a column or a type that a sink can't write
│   ├── LogMismatch         the log belongs to another query, or the batch is not the next one
│   └── PoolExhausted       every transactional id that this batch could use is in doubt
└── OperatorRequired        call a person: going on could lose or double records
    ├── TransactionLost     the target rolled back a transaction after it was decided
    ├── OutcomeUnknown      the target can't say what became of a decided transaction
    └── CorruptLog          an entry of the commit log is not what a coordinator writes
```
"""


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
    """The input was refused before anything was written. Correct it and start again."""


class ConfigurationError(Refused):
    """An option, a plugin or a name is wrong."""


class SchemaMismatch(Refused):
    """A column is missing, unknown or of a type that the sink can't write."""


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
