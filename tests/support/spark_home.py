"""What Spark is started with: a Java and a Python that fit, and a home for processes that leave something in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twopc_kafka_broker import SPARK_MODULES, find_java


def set_java_and_python() -> str:
    """Put a Java for Spark, and this Python, into the environment of this process and of those that it starts; the
    Java's home."""
    os.environ["JAVA_HOME"] = str(find_java(SPARK_MODULES).home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return os.environ["JAVA_HOME"]


def spark_home(folder: Path) -> Path:
    """PySpark's, but for the folder ``work``, into which executors log: that is to be the caller's own."""
    import pyspark

    folder.mkdir()
    for path in Path(pyspark.__file__ or "").parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder
