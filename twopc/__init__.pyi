# One statement for each module.
# isort: off
from twopc.checks import CheckResult as CheckResult, CheckStatus as CheckStatus
from twopc.coordinator import Coordinator as Coordinator
from twopc.datasets import Dataset as Dataset
from twopc.diagnosis import Diagnosis as Diagnosis, doctor as doctor
from twopc.errors import (
    ConfigurationError as ConfigurationError,
    CorruptLog as CorruptLog,
    Fenced as Fenced,
    InDoubt as InDoubt,
    LogMismatch as LogMismatch,
    OperatorRequired as OperatorRequired,
    OutcomeUnknown as OutcomeUnknown,
    PoolExhausted as PoolExhausted,
    RecordRefused as RecordRefused,
    Refused as Refused,
    RepeatedFailure as RepeatedFailure,
    Retriable as Retriable,
    RoundAborted as RoundAborted,
    SchemaMismatch as SchemaMismatch,
    TransactionLost as TransactionLost,
    TwoPhaseCommitError as TwoPhaseCommitError,
)
from twopc.events import (
    BatchCommitted as BatchCommitted,
    BatchFailed as BatchFailed,
    BatchFinished as BatchFinished,
    BatchPart as BatchPart,
    CallRetried as CallRetried,
    Event as Event,
    PhaseEntered as PhaseEntered,
    TransactionAborted as TransactionAborted,
    TransactionCommitted as TransactionCommitted,
    TransactionReplayed as TransactionReplayed,
)
from twopc.exit_codes import ExitCode as ExitCode
from twopc.hookspecs import hookimpl as hookimpl
from twopc.keyed import KeyedSink as KeyedSink
from twopc.log.entries import Entry as Entry
from twopc.log.store import LogStore as LogStore, open_store as open_store
from twopc.observing import register_observer as register_observer, unregister_observer as unregister_observer
from twopc.participant import Participant as Participant, Vote as Vote
from twopc.phases import Phase as Phase
from twopc.plugins import create_sink as create_sink
from twopc.replay import ReplayCopies as ReplayCopies
from twopc.sink import (
    OpenTransactions as OpenTransactions,
    TwoPhaseCommitSink as TwoPhaseCommitSink,
    WholeBatchSink as WholeBatchSink,
)
from twopc.transaction import Committable as Committable, Transaction as Transaction
from twopc.transactional_ids import (
    Round as Round,
    TransactionalIdPool as TransactionalIdPool,
    TransactionId as TransactionId,
)
