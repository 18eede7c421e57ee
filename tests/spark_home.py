"""PySpark's home for processes that leave something in it."""

from __future__ import annotations

from pathlib import Path

import pyspark


def spark_home(folder: Path) -> Path:
    """PySpark's, but for the folder ``work``, into which executors log: that is to be the caller's own."""
    folder.mkdir()
    for path in Path(pyspark.__file__ or "").parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder
