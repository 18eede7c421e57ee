"""Declarative pipelines for tests and campaigns: a project in a folder, and a run of it by ``spark-pipelines``."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

FAULT_OF_SPARK_4_2 = "[UNKNOWN_RESPONSE]"
"""SPARK-59135: after a run with a Python data source, the client rejects a message of the server. The run is
complete."""

COMPLETED = "Run is COMPLETED."

SPARK_PIPELINES = Path(sys.executable).with_name("spark-pipelines")


def make_project(folder: Path, definitions: str) -> None:
    """Write the project: its definitions, and a specification that keeps the checkpoints in ``folder/storage``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definitions.py").write_text(definitions)
    specification = {
        "name": "orders",
        "storage": (folder / "storage").as_uri(),
        "libraries": [{"glob": {"include": "definitions.py"}}],
        "configuration": {"spark.sql.pipelines.maxFlowRetryAttempts": "0"},
    }
    (folder / "spark-pipeline.yml").write_text(json.dumps(specification))  # JSON is valid YAML


def run_command(folder: Path, settings: Mapping[str, str], master: str = "local[2]") -> list[str]:
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    specification = str(folder / "spark-pipeline.yml")
    return [str(SPARK_PIPELINES), "--remote", master, *given, "run", "--spec", specification]


def has_completed(code: int, output: str) -> bool:
    """Return whether a run has written everything: it exits with 0, or with Spark's fault after its end."""
    return COMPLETED in output and (code == 0 or FAULT_OF_SPARK_4_2 in output)
