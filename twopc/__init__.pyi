from twopc.checks import CheckResult as CheckResult
from twopc.checks import CheckStatus as CheckStatus
from twopc.coordinator import Coordinator as Coordinator
from twopc.datasets import Dataset as Dataset
from twopc.diagnosis import Diagnosis as Diagnosis
from twopc.diagnosis import doctor as doctor
from twopc.errors import (
    ConfigurationError as ConfigurationError,
)
from twopc.errors import (
    CorruptLog as CorruptLog,
)
from twopc.errors import (
    Fenced as Fenced,
)
from twopc.errors import (
    InDoubt as InDoubt,
)
from twopc.errors import (
    LogMismatch as LogMismatch,
)
from twopc.errors import (
    OperatorRequired as OperatorRequired,
)
from twopc.errors import (
    OutcomeUnknown as OutcomeUnknown,
)
from twopc.errors import (
    PoolExhausted as PoolExhausted,
)
from twopc.errors import (
    RecordRefused as RecordRefused,
)
from twopc.errors import (
    Refused as Refused,
)
from twopc.errors import (
    RepeatedFailure as RepeatedFailure,
)
from twopc.errors import (
    Retriable as Retriable,
)
from twopc.errors import (
    RoundAborted as RoundAborted,
)
from twopc.errors import (
    SchemaMismatch as SchemaMismatch,
)
from twopc.errors import (
    TransactionLost as TransactionLost,
)
from twopc.errors import (
    TwoPhaseCommitError as TwoPhaseCommitError,
)
from twopc.events import (
    BatchCommitted as BatchCommitted,
)
from twopc.events import (
    BatchFailed as BatchFailed,
)
from twopc.events import (
    BatchFinished as BatchFinished,
)
from twopc.events import (
    BatchPart as BatchPart,
)
from twopc.events import (
    CallRetried as CallRetried,
)
from twopc.events import (
    Event as Event,
)
from twopc.events import (
    PhaseEntered as PhaseEntered,
)
from twopc.events import (
    TransactionAborted as TransactionAborted,
)
from twopc.events import (
    TransactionCommitted as TransactionCommitted,
)
from twopc.events import (
    TransactionReplayed as TransactionReplayed,
)
from twopc.exit_codes import ExitCode as ExitCode
from twopc.hookspecs import hookimpl as hookimpl
from twopc.keyed import KeyedSink as KeyedSink
from twopc.log.entries import Entry as Entry
from twopc.log.store import LogStore as LogStore
from twopc.log.store import open_store as open_store
from twopc.observing import register_observer as register_observer
from twopc.observing import unregister_observer as unregister_observer
from twopc.open_transactions import OpenTransactions as OpenTransactions
from twopc.participant import Participant as Participant
from twopc.participant import Vote as Vote
from twopc.phases import Phase as Phase
from twopc.plugins import create_sink as create_sink
from twopc.replay import ReplayCopies as ReplayCopies
from twopc.sink import TwoPhaseCommitSink as TwoPhaseCommitSink
from twopc.sink import WholeBatchSink as WholeBatchSink
from twopc.transaction import Committable as Committable
from twopc.transaction import Transaction as Transaction
from twopc.transactional_ids import (
    Round as Round,
)
from twopc.transactional_ids import (
    TransactionalIdPool as TransactionalIdPool,
)
from twopc.transactional_ids import (
    TransactionId as TransactionId,
)
