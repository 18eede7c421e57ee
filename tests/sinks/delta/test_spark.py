"""The cases of ``spark_cases``, in a process of their own: this one's Spark may have been started without Delta."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("spark_cases.py")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_spark_with_delta_and_the_sink_read_and_write_the_same_tables(java_home: str) -> None:  # sets it up
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # this Python
    assert done.returncode == 0, done.stdout[-4000:]
