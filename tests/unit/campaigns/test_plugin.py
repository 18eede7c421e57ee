"""``make prove-plugin`` runs in an environment that has neither Spark nor Azure's client."""

import subprocess
import sys

from tests.campaigns.plugin.campaign import CONTRACTS
from tests.support.pages import ROOT

WITHOUT = """
import importlib, sys
sys.modules.update(dict.fromkeys(["azure", "pyspark"]))  # None: importing it raises ModuleNotFoundError
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_fixtures_of_the_contracts_are_imported_without_spark_and_azure() -> None:
    folders = sorted({each.rpartition("/")[0] for each in CONTRACTS if each.startswith("tests/sinks/")})
    modules = [f"{folder.replace('/', '.')}.conftest" for folder in folders]
    command = [sys.executable, "-c", WITHOUT, "tests.conftest", *modules, "tests.campaigns.plugin.kills"]
    called = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert called.returncode == 0, called.stderr
