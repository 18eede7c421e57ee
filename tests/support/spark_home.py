"""Java and Python for Spark, and a writable Spark home."""

import os
import sys
from pathlib import Path

from twopc_kafka_broker import SPARK_MODULES, find_java


def set_java_and_python() -> str:
    """Set this process's environment variables for Java and Python. Return the Java home."""
    os.environ["JAVA_HOME"] = str(find_java(SPARK_MODULES).home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return os.environ["JAVA_HOME"]


def spark_home(folder: Path) -> Path:
    """Create a linked copy of PySpark's home without its folder ``work``, so that executors log into the copy."""
    import pyspark

    folder.mkdir()
    for path in Path(pyspark.__file__ or "").parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder
