"""Two-phase-commit sinks: several systems commit a batch on one decision, exactly once, or none of them does."""

from twopc.checks import CheckResult
from twopc.coordinator import Coordinator
from twopc.foreign import refuse_foreign_files
from twopc.hookspecs import hookimpl
from twopc.log.store import open_store
from twopc.participant import Participant, Vote
from twopc.plugins import create_sink, register_observer, unregister_observer
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionId

__all__ = [
    "CheckResult",
    "Committable",
    "Coordinator",
    "Participant",
    "Round",
    "Transaction",
    "TransactionId",
    "TwoPhaseCommitSink",
    "Vote",
    "create_sink",
    "hookimpl",
    "open_store",
    "register_observer",
    "unregister_observer",
]

refuse_foreign_files()
