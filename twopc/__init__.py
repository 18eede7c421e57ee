"""Two-phase-commit sinks: several systems commit a batch on one decision, exactly once, or none of them does.

A name is imported when it is first used: a task and a command load only the parts that they need.
"""

from importlib import import_module

from twopc.foreign import refuse_foreign_files

_NAMES = {
    "checks": ("CheckResult", "CheckStatus"),
    "coordinator": ("Coordinator",),
    "datasets": ("Dataset",),
    "diagnosis": ("Diagnosis", "doctor"),
    "errors": (
        "ConfigurationError",
        "CorruptLog",
        "Fenced",
        "InDoubt",
        "LogMismatch",
        "OperatorRequired",
        "OutcomeUnknown",
        "PoolExhausted",
        "RecordRefused",
        "Refused",
        "RepeatedFailure",
        "Retriable",
        "RoundAborted",
        "SchemaMismatch",
        "TransactionLost",
        "TwoPhaseCommitError",
    ),
    "events": (
        "BatchCommitted",
        "BatchFailed",
        "BatchFinished",
        "BatchPart",
        "CallRetried",
        "Event",
        "PhaseEntered",
        "TransactionAborted",
        "TransactionCommitted",
        "TransactionReplayed",
    ),
    "exit_codes": ("ExitCode",),
    "hookspecs": ("hookimpl",),
    "keyed": ("KeyedSink",),
    "log.entries": ("Entry",),
    "log.store": ("LogStore", "open_store"),
    "observing": ("register_observer", "unregister_observer"),
    "open_transactions": ("OpenTransactions",),
    "participant": ("Participant", "Vote"),
    "phases": ("Phase",),
    "plugins": ("create_sink",),
    "replay": ("ReplayCopies",),
    "sink": ("TwoPhaseCommitSink", "WholeBatchSink"),
    "transaction": ("Committable", "Transaction"),
    "transactional_ids": ("Round", "TransactionId", "TransactionalIdPool"),
}
"""The public names, by their modules. Type checkers read them in ``__init__.pyi``."""

_MODULES = {name: f"twopc.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]  # noqa: PLE0604  # each is a text


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return import_module(f"twopc.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


refuse_foreign_files()
