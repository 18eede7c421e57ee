"""Sinks on their way to the executors."""

from __future__ import annotations

import pickle
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from twopc.errors import ConfigurationError
from twopc.spark.shipped import Shipped
from twopc_files.sink import FileSink

MODULE = """
from twopc_files.sink import FileSink

class Elsewhere(FileSink):
    pass
"""


def test_a_sink_arrives_bound_as_it_left(tmp_path: Path) -> None:
    sink = FileSink({"path": str(tmp_path / "archive"), "format": "json"})
    sink.bind("archive", "a-log")
    shipped: Shipped = pickle.loads(pickle.dumps(Shipped.of({"archive": sink})))  # noqa: S301  # as Spark does
    assert shipped.arrived()["archive"].transactional_ids == sink.transactional_ids


def test_what_is_not_installed_is_told_by_name_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(MODULE)
    info = tmp_path / "twopc_elsewhere-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twopc-elsewhere\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[twopc]\nelsewhere = elsewhere:plugin\n")
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path))
        invalidate_caches()
        sink = import_module("elsewhere").Elsewhere({"path": str(tmp_path / "archive"), "format": "json"})
        shipped = Shipped.of({"archive": sink})
    del sys.modules["elsewhere"]

    assert repr(shipped) == "Shipped()"  # a sink may hold credentials
    with pytest.raises(ConfigurationError) as refused:
        shipped.arrived()
    assert "sink 'archive' can't be loaded on the executor at" in str(refused.value)
    assert "No module named 'elsewhere'. Install twopc-elsewhere 2.1 into that Python" in str(refused.value)
