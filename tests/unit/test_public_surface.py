"""What users may import, and what the core must not."""

from __future__ import annotations

import subprocess
import sys

import twopc
import twopc.testing
from twopc import errors


def test_the_public_names_are_these() -> None:
    assert sorted(twopc.__all__) == [
        "Committable",
        "Coordinator",
        "Finding",
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
    assert sorted(twopc.testing.__all__) == ["LogStoreContract", "MemorySink", "MemoryTarget", "SinkContract"]
    assert all(hasattr(twopc, name) for name in twopc.__all__)


def test_every_error_says_by_its_base_what_to_do() -> None:
    tree = {
        name: kind.__mro__[1].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind is not errors.TwoPhaseCommitError
    }
    assert tree == {
        "Retriable": "TwoPhaseCommitError",
        "RoundAborted": "TwoPhaseCommitError",
        "InDoubt": "TwoPhaseCommitError",
        "Fenced": "TwoPhaseCommitError",
        "Refused": "TwoPhaseCommitError",
        "ConfigurationError": "Refused",
        "SchemaMismatch": "Refused",
        "LogMismatch": "Refused",
        "PoolExhausted": "Refused",
        "OperatorRequired": "TwoPhaseCommitError",
        "TransactionLost": "OperatorRequired",
        "OutcomeUnknown": "OperatorRequired",
        "CorruptLog": "OperatorRequired",
    }


def test_the_abstract_methods_of_a_sink_are_these() -> None:
    assert twopc.TwoPhaseCommitSink.__abstractmethods__ == frozenset(
        {"begin", "write", "pre_commit", "commit", "abort", "recover"}
    )


def test_the_core_imports_no_backend_no_engine_and_no_client() -> None:
    clients = ["confluent_kafka", "kafka", "opentelemetry", "prometheus_client", "psycopg", "pyarrow", "pyspark"]
    heavy = [*clients, "twopc.observers", "twopc_kafka", "twopc_files", "twopc_postgres", "twopc.testing"]
    code = f"import sys, twopc; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stdout
