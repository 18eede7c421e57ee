"""The Python processes in which Spark runs tasks, one after another."""

from __future__ import annotations

import functools
import gc


@functools.cache
def spare_garbage_collection() -> None:
    """Exempt from garbage collection, once per process, all that it has loaded. For the end of its first task.

    PySpark collects garbage after each task (``manager`` in ``pyspark/daemon.py``). To look through the modules of
    Arrow and a sink each time takes 50 ms of CPU, more than the task of a small batch. Of the first task's own objects,
    those that refer to each other in a circle stay until the process ends.
    """
    gc.collect()
    gc.freeze()
