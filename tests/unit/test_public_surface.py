"""What users may import, and what the core must not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import twopc
from tests.support.pages import ROOT
from tests.unit.public_surface import lines
from twopc import errors


def test_the_public_surface_of_every_distribution_is_this() -> None:
    pinned = Path(__file__).with_name("public_surface.txt")
    why = f"is it meant? docs/versions.md tells which release may change it; {lines.__module__} writes the file anew"
    assert list(lines()) == pinned.read_text(encoding="utf-8").splitlines(), why


def test_every_error_says_by_its_base_what_to_do() -> None:
    tree = {
        name: kind.__mro__[1].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not errors.TwoPhaseCommitError
    }
    assert tree == {
        "Retriable": "TwoPhaseCommitError",
        "RoundAborted": "TwoPhaseCommitError",
        "InDoubt": "TwoPhaseCommitError",
        "Fenced": "TwoPhaseCommitError",
        "Refused": "TwoPhaseCommitError",
        "ConfigurationError": "Refused",
        "SchemaMismatch": "Refused",
        "RecordRefused": "Refused",
        "LogMismatch": "Refused",
        "PoolExhausted": "Refused",
        "OperatorRequired": "TwoPhaseCommitError",
        "RepeatedFailure": "OperatorRequired",
        "TransactionLost": "OperatorRequired",
        "OutcomeUnknown": "OperatorRequired",
        "CorruptLog": "OperatorRequired",
    }


def test_the_abstract_methods_of_a_sink_are_these() -> None:
    assert twopc.TwoPhaseCommitSink.__abstractmethods__ == frozenset(
        {"begin", "write", "pre_commit", "commit", "abort", "recover"}
    )


def test_the_core_imports_no_backend_no_engine_and_no_client() -> None:
    clients = [
        "confluent_kafka",
        "deltalake",
        "grpc",
        "kafka",
        "opentelemetry",
        "prometheus_client",
        "psycopg",
        "pymysql",
        "pyarrow",
        "pyspark",
        "sqlalchemy",
    ]
    heavy = [
        *clients,
        "twopc.observers",
        "twopc_kafka",
        "twopc_files",
        "twopc_postgres",
        "twopc_iceberg",
        "twopc_delta",
        "twopc_mysql",
        "twopc_pravega",
        "twopc_sql",
        "twopc.testing",
    ]
    names = "[getattr(twopc, name) for name in twopc.__all__]"
    code = f"import sys, twopc; {names}; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stdout


def test_type_checkers_see_the_names_that_are_imported_at_their_first_use() -> None:
    stub = ast.parse((ROOT / "twopc/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in imports for alias in node.names} == vars(twopc)["_MODULES"]


@pytest.mark.parametrize(
    ("code", "own", "others"),
    [
        ("import twopc", 2, set()),
        ("import twopc.sink", 20, set()),
        ("from twopc.cli import main; sys.argv[1:] = ['--help']; main()", 6, {"click"}),
    ],
)
def test_what_an_import_and_the_help_load(code: str, own: int, others: set[str]) -> None:
    count = (
        "import atexit, sys; before = {*sys.modules};"
        " atexit.register(lambda: print(*{*sys.modules} - before, file=sys.stderr))"
    )
    done = subprocess.run([sys.executable, "-c", f"{count}; {code}"], capture_output=True, text=True, check=True)
    packages = [name.partition(".")[0] for name in done.stderr.split()]
    assert 0 < packages.count("twopc") <= own
    assert {*packages} - {"twopc", *sys.stdlib_module_names} == others
