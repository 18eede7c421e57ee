"""All use of PySpark's private names, which lead to Spark's objects in the JVM.

They were read in 4.2.0. If another version renames ``_jvm``, ``_jsparkSession`` or ``_jdf``, the first batch fails
before it writes anything. The extra ``spark`` allows only the versions that ``make prove-spark`` runs.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession


def jvm(of: SparkSession | SparkContext) -> Any:
    """Return the view of the JVM's classes."""
    return of._jvm  # noqa: SLF001


def of_session(session: SparkSession) -> Any:
    """Return the session's object in the JVM."""
    return session._jsparkSession  # noqa: SLF001


def of_frame(frame: DataFrame) -> Any:
    """Return the frame's object in the JVM."""
    return frame._jdf  # noqa: SLF001


def is_stopped(context: SparkContext) -> bool:
    """Return whether this process has stopped the context."""
    return context._jsc is None  # noqa: SLF001
