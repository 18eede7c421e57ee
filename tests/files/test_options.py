"""Options are checked when the sink is made."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink
from twopc_files import plugin
from twopc_files.options import FileOptions
from twopc_files.parquet import Parquet
from twopc_files.sink import FileSink


@pytest.mark.parametrize(
    "path",
    ["/data/orders", "/data/orders/", "file:///data/orders", "local:///data/orders", "file:/data/orders"],
)
def test_a_plain_path_and_a_file_url_name_the_same_folder(path: str) -> None:
    assert FileOptions.parse({"path": path}).folder == Path("/data/orders")


def test_a_relative_path_means_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert FileOptions.parse({"path": "orders"}).folder == tmp_path / "orders"


def test_parquet_with_snappy_is_the_default() -> None:
    assert FileOptions.parse({"path": "/x"}).format == Parquet("snappy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'path'"),
        ({"path": ""}, "needs the option 'path'"),
        ({"path": None}, "needs the option 'path'"),
        ({"path": "s3://bucket/orders"}, r"'s3' is not one of file, local"),
        ({"path": "hdfs:/data/orders"}, r"'hdfs' is not one of file, local"),
        ({"path": "simplecache::file:///x"}, "is not one of file, local"),
        ({"path": "file://data/orders"}, "three slashes"),
        ({"path": "/x", "fromat": "json"}, r"'fromat'. Did you mean 'format'\? It knows: path, format, compression"),
        ({"path": "/x", "zzz": "1"}, "no option 'zzz'. It knows: path, format, compression"),
        ({"path": "/x", "format": "xml"}, "format 'xml' is not one of parquet, json"),
        ({"path": "/x", "compression": "lzo"}, "compression 'lzo' is not one of none, snappy"),
        ({"path": "/x", "compression": ""}, "compression '' is not one of"),
        ({"path": "/x", "format": "json", "header": "true"}, "'header' is for format csv only, not for json"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_wrong_option_is_refused_with_what_is_known(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileSink(options)


def test_the_plugin_gives_the_class_of_the_sink() -> None:
    found = plugin.twopc_sink()
    assert found is FileSink
    assert issubclass(found, TwoPhaseCommitSink)


def test_a_sink_that_was_pickled_writes_to_the_same_folder_in_the_same_format() -> None:
    sink = FileSink({"path": "/data/orders", "format": "json"})
    sink.bind("orders", "log")
    twin = pickle.loads(pickle.dumps(sink))  # noqa: S301  # our own bytes
    assert repr(twin) == repr(sink) == "FileSink('/data/orders', JsonLines(compression='none'))"
