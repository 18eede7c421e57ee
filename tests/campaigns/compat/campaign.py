"""``make compat``: run the gate's tests of each backend with the lowest and the newest versions that it allows.

Each run has an environment of its own, which is removed afterwards. The tools of the tests have their locked versions.
PySpark is that of this process, which takes half a gigabyte: ``make prove-spark`` runs its versions. The tests of Kafka
also run on brokers of other versions, with the newest clients.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
from packaging.requirements import Requirement

from tests.campaigns.report import Report
from tests.support.distributions import CommandFailed, call, without_python
from tests.support.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
"""What is installed of each borrowed package → how uv calls it."""

BROKERS = ("3.0.2", "4.4.0")
"""Versions of Kafka beside the development broker's own: the oldest that the sink supports, and the newest."""

EVERYWHERE = (".", "plugins/kafka", "plugins/kafka-broker", "plugins/postgres")
"""The distributions that every test needs."""

RUNS_AT_MOST_S = 3600

FOLLOW = ("opentelemetry-sdk",)
"""Tools with the version of a borrowed package."""

LENT = ("pyspark", "py4j")
"""Distributions of this process that an environment has by links."""

UNUSED = (*LENT, "grafana-foundation-sdk", "matplotlib", "twine")
"""Tools of campaigns, which no sink's test needs, with requirements of their own."""

PARTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "core": (("plugins/files",), ("tests/observers", "tests/stores")),
    "kafka": ((), ("tests/sinks/kafka",)),
    "postgres": ((), ("tests/sinks/postgres",)),
    "files": (("plugins/files",), ("tests/sinks/files",)),
    **{name: ((f"plugins/{name}",), (f"tests/sinks/{name}",)) for name in ("mysql", "pravega")},
    "sql": (("plugins/sql", "plugins/mysql"), ("tests/sinks/sql",)),
    **{name: ((f"plugins/{name}", "plugins/files"), (f"tests/sinks/{name}",)) for name in ("delta", "iceberg")},
}
"""Part → its distributions beside those, and its tests."""


def of_project(folder: str) -> dict[str, Any]:
    """Return the ``pyproject.toml`` of a folder."""
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def borrowed(folders: Sequence[str]) -> dict[str, list[Requirement]]:
    """Return what these distributions require of others, with every extra: name → each requirement."""
    found: dict[str, list[Requirement]] = {}
    for folder in folders:
        project = of_project(folder)["project"]
        for each in (project["dependencies"], *project.get("optional-dependencies", {}).values()):
            for requirement in map(Requirement, each):
                if not requirement.name.startswith("twopc-"):
                    found.setdefault(requirement.name, []).append(requirement)
    return found


def tools(besides: Mapping[str, Any]) -> Iterator[str]:
    """Yield the requirements of the tests, at the locked versions that run this, except for packages that are borrowed
    and ``FOLLOW`` one of them."""
    groups = of_project(".")["dependency-groups"]
    named = (each for group in ("demo", "test", "campaigns") for each in groups[group] if isinstance(each, str))
    for requirement in map(Requirement, named):
        if requirement.name in UNUSED:
            continue
        if requirement.name in (*besides, *FOLLOW):
            yield str(requirement)
        else:
            yield f"{requirement.name}{_extras(requirement.extras)}=={version(requirement.name)}"


def _extras(names: set[str]) -> str:
    return f"[{','.join(sorted(names))}]" if names else ""


class Run:
    """The tests of one part with one kind of versions.

    Args:
        uv: the uv that installs.
        part: one of ``PARTS``.
        versions: one of ``RESOLUTIONS``.
        folder: of the environment.
        marks: which of the tests to run, as pytest has it.
        processes: how many of them share the tests.
        broker: the version of Kafka, if not the development broker's own.
    """

    def __init__(
        self, uv: str, part: str, versions: str, folder: Path, marks: str, processes: int, broker: str | None
    ) -> None:
        self._uv, self._versions, self._marks, self._processes = uv, versions, marks, processes
        self._broker = {"TWOPC_KAFKA_VERSION": broker} if broker else {}
        besides, self._tests = PARTS[part]
        self._own = borrowed(["." if part == "core" else f"plugins/{part}"])
        self._folders = (*EVERYWHERE, *besides)
        self._borrowed = borrowed(self._folders)
        self._environment = folder / f"{part}-{versions}"
        self._results = folder / f"{part}-{versions}.xml"
        self._python = self._environment / "bin" / "python"

    def __call__(self) -> dict[str, Any]:
        """Return what was installed and how the tests ended. Raises CommandFailed: nothing fits together."""
        began_s = time.monotonic()
        try:
            self._install()
            versions = self._installed()
            self._results.unlink(missing_ok=True)
            self._pytest()
        finally:
            shutil.rmtree(self._environment, ignore_errors=True)
        seconds = round(time.monotonic() - began_s)
        return {"borrowed": versions, "marks": self._marks, **_outcomes(self._results), "seconds": seconds}

    def _install(self) -> None:
        call(self._uv, "venv", "--quiet", "--clear", "--python", sys.executable, self._environment)
        ours: list[str] = []
        for folder in self._folders:
            extras = _extras(set(of_project(folder)["project"].get("optional-dependencies", {})) - {"all"})
            ours += ("--editable", f"{folder}{extras}")
        install = ("pip", "install", "--quiet", "--python", self._python, "--resolution", RESOLUTIONS[self._versions])
        excludes = self._environment / "excludes.txt"
        excludes.write_text("\n".join(LENT), encoding="utf-8")
        call(self._uv, *install, "--excludes", excludes, *ours, *tools(self._borrowed))
        [site_packages] = self._environment.glob("lib/python*/site-packages")
        for each in (found for name in LENT for found in Path(pyspark.__file__).parents[1].glob(f"{name}*")):
            (site_packages / each.name).symlink_to(each)

    def _installed(self) -> dict[str, str]:
        listed = json.loads(call(self._uv, "pip", "list", "--python", self._python, "--format", "json"))
        return {each["name"]: each["version"] for each in listed if each["name"] in self._own}

    def _pytest(self) -> None:
        options = ("-q", "-m", self._marks, "-p", "no:cacheprovider", f"--junitxml={self._results}")
        workers = ("--numprocesses", str(self._processes), "--dist", "loadgroup", "--no-loadscope-reorder")
        environment = {**without_python(), **self._broker, "UV": self._uv}
        command = [str(self._python), "-m", "pytest", *options, *workers, *self._tests]
        subprocess.run(command, cwd=ROOT, env=environment, timeout=RUNS_AT_MOST_S, check=False)


def _outcomes(results: Path) -> dict[str, Any]:
    """Return how many tests ended in which way, and the names of those that failed. No test at all is a failure."""
    counts, failed = Counter[str](), list[str]()
    for case in ET.parse(results).getroot().iter("testcase") if results.exists() else ():  # noqa: S314  # our own
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        counts["skipped" if kinds == {"skipped"} else "failed" if kinds else "passed"] += 1
        if kinds - {"skipped"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return {"tests": counts, "failed": failed if counts["passed"] or failed else ["no test was run"]}


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns compat", description=__doc__)
    parser.add_argument("--uv", default="uv", help="the uv that installs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--versions", nargs="*", choices=RESOLUTIONS, default=[*RESOLUTIONS])
    parser.add_argument("--brokers", nargs="*", default=BROKERS, help="versions of Kafka beside the usual one")
    parser.add_argument("--marks", default="not long", help="which tests, such as 'not long and not server'")
    parser.add_argument("--processes", type=int, default=4, help="how many share the tests of a part")
    parser.add_argument("--folder", type=Path, default=Path("build/compat"), help="folder for environments and report")
    given = parser.parse_args(arguments)
    uv = str(Path(given.uv).resolve()) if os.sep in given.uv else given.uv
    folder = given.folder.resolve()
    report = Report(folder / "report.json")
    # A part that is run alone replaces its own lines.
    runs = json.loads((folder / "report.json").read_text()) if (folder / "report.json").exists() else {}
    wanted: list[tuple[str, str, str | None]] = [(part, each, None) for part in given.parts for each in given.versions]
    wanted += [("kafka", "newest", broker) for broker in given.brokers if "kafka" in given.parts]
    failed = []
    for part, versions, broker in wanted:
        name = f"{part} {versions}" + (f", broker {broker}" if broker else "")
        print(f"{name} ...", flush=True)
        try:
            runs[name] = Run(uv, part, versions, folder, given.marks, given.processes, broker)()
        except CommandFailed as error:
            runs[name] = {"failed": [str(error)]}
        failed += [f"{name}: {each}" for each in runs[name]["failed"]]
        report.write(runs)
    print("\n".join(failed))
    summary = f"{len(wanted)} runs; {len(failed) or 'nothing'} failed"
    return report.end(summary, failed=bool(failed))
