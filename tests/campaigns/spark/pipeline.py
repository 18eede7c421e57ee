"""A driver that runs a declarative pipeline. The driver is the Connect server that ``spark-pipelines`` starts."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.campaigns.spark.job import Job
from tests.support.pipelines import has_completed, make_project, run_command

DEFINITIONS = """from tests.campaigns.spark.definitions import define

define({job!r})
"""


def run(job: Job, settings: Mapping[str, str]) -> None:
    """Run the pipeline until everything is written, in this process's group."""
    folder = Path(job.folder)
    make_project(folder, DEFINITIONS.format(job=json.dumps(asdict(job))))
    output = folder / "pipeline.log"
    with output.open("w") as log:
        command = run_command(folder, settings, job.master)
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if not has_completed(code, output.read_text()):
        raise RuntimeError(f"the pipeline ended with {code}:\n{output.read_text()}")
