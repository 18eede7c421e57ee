"""Two-phase-commit sinks: several systems commit a batch on one decision, exactly once, or none of them does."""

from twopc.checks import CheckResult, CheckStatus
from twopc.coordinator import Coordinator
from twopc.datasets import Dataset
from twopc.doctor import Diagnosis, doctor
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    Fenced,
    InDoubt,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    PoolExhausted,
    RecordRefused,
    Refused,
    RepeatedFailure,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.events import (
    BatchCommitted,
    BatchFailed,
    BatchFinished,
    BatchPart,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.exit_codes import ExitCode
from twopc.foreign import refuse_foreign_files
from twopc.hookspecs import hookimpl
from twopc.keyed import KeyedSink
from twopc.log.entries import Entry
from twopc.log.store import LogStore, open_store
from twopc.observing import register_observer, unregister_observer
from twopc.open_transactions import OpenTransactions
from twopc.participant import Participant, Vote
from twopc.phases import Phase
from twopc.plugins import create_sink
from twopc.replay import ReplayCopies
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionalIdPool, TransactionId

__all__ = [
    "BatchCommitted",
    "BatchFailed",
    "BatchFinished",
    "BatchPart",
    "CallRetried",
    "CheckResult",
    "CheckStatus",
    "Committable",
    "ConfigurationError",
    "Coordinator",
    "CorruptLog",
    "Dataset",
    "Diagnosis",
    "Entry",
    "Event",
    "ExitCode",
    "Fenced",
    "InDoubt",
    "KeyedSink",
    "LogMismatch",
    "LogStore",
    "OpenTransactions",
    "OperatorRequired",
    "OutcomeUnknown",
    "Participant",
    "Phase",
    "PhaseEntered",
    "PoolExhausted",
    "RecordRefused",
    "Refused",
    "RepeatedFailure",
    "ReplayCopies",
    "Retriable",
    "Round",
    "RoundAborted",
    "SchemaMismatch",
    "Transaction",
    "TransactionAborted",
    "TransactionCommitted",
    "TransactionId",
    "TransactionLost",
    "TransactionReplayed",
    "TransactionalIdPool",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "Vote",
    "WholeBatchSink",
    "create_sink",
    "doctor",
    "hookimpl",
    "open_store",
    "register_observer",
    "unregister_observer",
]

refuse_foreign_files()
