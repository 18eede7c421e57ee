"""Java and Python for Spark, and a Spark home for processes that write into it."""

import os
import sys
from pathlib import Path

from twopc_kafka_broker import SPARK_MODULES, find_java


def set_java_and_python() -> str:
    """Put a Java for Spark, and this Python, into the environment of this process. Return the home of Java."""
    os.environ["JAVA_HOME"] = str(find_java(SPARK_MODULES).home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return os.environ["JAVA_HOME"]


def spark_home(folder: Path) -> Path:
    """Make a copy of PySpark's home by links, without its folder ``work``, so that executors log into the caller's."""
    import pyspark

    folder.mkdir()
    for path in Path(pyspark.__file__ or "").parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder
