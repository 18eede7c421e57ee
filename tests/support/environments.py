"""Environments with other versions of Spark and Python. Later runs reuse them."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.pages import ROOT
from twopc_kafka_broker import SourceNotPublished, spark_kafka_jars

INSTALL_AT_MOST_S = 600
VENV_PACK = "venv-pack==0.2.0"
_PROJECT = ("-e", ".[spark]", "-e", "plugins/kafka", "-e", "plugins/kafka-broker", "-e", "plugins/files", "psutil")


@dataclass(frozen=True)
class Environment:
    """The interpreter and jars of a driver.

    Attributes:
        python: the interpreter.
        jars: the jars of the Kafka source, as a class path; empty if none is published for this version of Spark.
    """

    python: str
    jars: str


class NotHere(Exception):
    """The environment can't be created on this machine."""


def uv() -> str:
    """Return the command of the uv that set up this project, or else any uv."""
    of_setup = sorted(str(path) for path in ROOT.glob("build/uv-*/bin/uv"))
    return os.environ.get("UV") or next(iter(of_setup), "uv")


def own() -> Environment:
    return Environment(sys.executable, _jars(pyspark.__version__))


def made(folder: Path, uv: str, spark: str, python: str, *plugins: str) -> Environment:
    """Return an environment with the given Spark, an installed interpreter, and ``plugins``. If this process's own
    environment has that Spark and Python, return it instead.

    Raises:
        NotHere: the interpreter is not installed, or a distribution is not available.
    """
    if spark == pyspark.__version__ and python in ("", f"{sys.version_info.major}.{sys.version_info.minor}"):
        return own()
    name = f"spark-{spark}-python-{python or 'own'}"
    executable = folder / name / "bin" / "python"
    if not (folder / name / "done").exists():
        interpreter = ("--python", python or sys.executable)
        _call(uv, "venv", "--quiet", "--clear", "--no-python-downloads", *interpreter, str(folder / name))
        installs = (uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(executable))
        _call(*installs, f"pyspark=={spark}", *_PROJECT, *(part for plugin in plugins for part in ("-e", plugin)))
        (folder / name / "done").touch()
    return Environment(str(executable), _jars(spark))


def packed(folder: Path, uv: str, *modules: Path) -> Path:
    """Return an archive of an environment with this project's wheels and ``modules``, without PySpark, which Spark
    provides.

    Raises:
        NotHere: a distribution is not available.
    """
    environment, archive = folder / "packed", folder / "packed.tar.gz"
    shutil.rmtree(environment, ignore_errors=True)  # its wheels may be outdated
    _call(sys.executable, "-m", "venv", "--without-pip", str(environment))
    for project in (".", "plugins/kafka", "plugins/files"):
        _call(uv, "build", "--quiet", "--wheel", "--out-dir", str(environment / "wheels"), project)
    wheels = [str(wheel) for wheel in (environment / "wheels").glob("*.whl")]
    needed = ("pyarrow>=19", "pandas>=2.2,<3", "psutil")
    _call(uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *wheels, *needed)
    [site_packages] = environment.glob("lib/python*/site-packages")
    for module in modules:
        copy = shutil.copytree if module.is_dir() else shutil.copy
        copy(module, site_packages / module.name)
    _call(uv, "tool", "run", "--from", VENV_PACK, "venv-pack", "-q", "-f", "-p", str(environment), "-o", str(archive))
    return archive


def _jars(spark: str) -> str:
    try:
        return ":".join(map(str, spark_kafka_jars(spark)))
    except SourceNotPublished:
        return ""


def _call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=INSTALL_AT_MOST_S, check=False)
    if done.returncode != 0:
        raise NotHere(f"{' '.join(command[:3])}: {done.stderr.strip()[-400:]}")
