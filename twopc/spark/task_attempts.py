"""Where Spark's count of task attempts stood at the last batch, kept beside the log so that names stay few.

A name has a serial that no other attempt of its round has (``transactional_ids``). Spark's task attempt ids differ,
but they count through all jobs of an application, and a target such as Kafka keeps each name for days. So they are
counted from where the last batch ended. Only how few the names are rests on this number: any number, a lost one or one
of another application too, gives each attempt a serial of its own.
"""

from __future__ import annotations

import contextlib

from fsspec.core import url_to_fs

_NAME = "task-attempts"


def serial(task_attempt_id: int, first: int) -> int:
    """A number for each attempt, small near ``first``, and never the same for two."""
    distance = task_attempt_id - first
    return 2 * distance if distance >= 0 else -2 * distance - 1


def first_of_next_round(log: str) -> int:
    """What ``keep`` kept, or 0."""
    fs, path = url_to_fs(f"{log.rstrip('/')}/{_NAME}")
    with contextlib.suppress(Exception):  # whatever is wrong with it, names are a few more
        return int(fs.cat_file(path))
    return 0


def keep(log: str, first: int) -> None:
    """Keep the number from which the next round's attempts count."""
    fs, path = url_to_fs(f"{log.rstrip('/')}/{_NAME}")
    with contextlib.suppress(Exception):
        fs.pipe_file(path, str(first).encode())
