"""PySpark beyond its documented names, all in this module: Spark's own objects in the JVM.

Read in 4.2.0. Another version may have renamed ``_jvm``, ``_jsparkSession`` or ``_jdf``, and the first batch would then
fail before it writes anything. The bounds of the extra ``spark`` admit what ``make prove-spark`` runs.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession


def jvm(of: SparkSession | SparkContext) -> Any:
    """Return the classes of the JVM."""
    return of._jvm  # noqa: SLF001


def of_session(session: SparkSession) -> Any:
    """Return Spark's session."""
    return session._jsparkSession  # noqa: SLF001


def of_frame(frame: DataFrame) -> Any:
    """Return Spark's frame."""
    return frame._jdf  # noqa: SLF001


def is_stopped(context: SparkContext) -> bool:
    """Return whether this process has stopped it."""
    return context._jsc is None  # noqa: SLF001
