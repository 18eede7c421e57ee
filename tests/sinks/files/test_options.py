"""Options are checked when the sink is made."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry

from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.errors import ConfigurationError
from twopc_files.options import FileOptions
from twopc_files.sink import FileSink
from twopc_files.stores.azure import Azure
from twopc_files.stores.local import Local
from twopc_files.stores.remote import Remote
from twopc_files.stores.s3 import S3


@pytest.mark.parametrize(
    "path", ["/data/orders", "/data/orders/", "file:///data/orders", "local:///data/orders", "file:/data/orders"]
)
def test_a_plain_path_and_a_file_url_name_the_same_folder(path: str) -> None:
    assert FileOptions.parse({"path": path}).store == Local(Path("/data/orders"))


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FileOptions.parse({"path": "~/orders"}).store == Local(tmp_path / "orders")


def test_a_relative_path_means_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert FileOptions.parse({"path": "orders"}).store == Local(tmp_path / "orders")


@pytest.mark.parametrize("path", ["s3://bucket/a/b", "s3a://bucket/a/b/", "s3n://bucket//a/b"])
def test_hadoops_spellings_of_s3_name_the_same_folder(path: str) -> None:
    assert FileOptions.parse({"path": path}).store == S3("bucket", "a/b", {})


@pytest.mark.parametrize("url", ["abfs://c/a/b", "abfss://c@account.dfs.core.windows.net/a/b", "az://c/a/b"])
def test_a_folder_in_azure_is_named_as_it_was_given(url: str) -> None:
    assert FileOptions.parse({"path": f"{url}/"}).store == Azure(url, {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("memory://orders/", Remote("memory://orders", {}, renames=False)),
        ("hdfs://name-node:8020/orders", Remote("hdfs://name-node:8020/orders", {}, renames=True)),
        ("hdfs:/orders", Remote("hdfs:///orders", {}, renames=True)),
        ("webhdfs://name-node:9870/orders", Remote("webhdfs://name-node:9870/orders", {}, renames=True)),
    ],
)
def test_a_protocol_chooses_the_way_in_which_files_are_published(path: str, expected: Remote) -> None:
    assert FileOptions.parse({"path": path}).store == expected


@pytest.mark.parametrize("options", [{"key": "k"}, '{"key": "k"}'], ids=["mapping", "text"])
def test_storage_options_may_be_text(options: object) -> None:
    assert FileOptions.parse({"path": "s3://bucket", "storage_options": options}).store == S3(
        "bucket", "", {"key": "k"}
    )


@pytest.mark.parametrize(
    "path",
    [
        *("abfs://container/x?sv=2026&sig=secret", "s3://key:secret@bucket/x", "s3://key:sec/ret@bucket/x"),
        *("hdfs://me:secret@host/x", "sftp://me:sec/ret@host/x"),
    ],
)
def test_a_password_in_the_path_is_refused_and_not_repeated(path: str) -> None:
    with pytest.raises(ConfigurationError, match="the file sink's path holds a password") as error:
        FileOptions.parse({"path": path})
    assert "sec" not in repr(error.value)
    assert error.value.__cause__ is error.value.__context__ is None


def test_storage_options_that_can_not_be_parsed_are_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as error:
        FileOptions.parse({"path": "s3://bucket", "storage_options": '{"secret": "very-secret"'})
    assert "very-secret" not in repr(error.value)
    assert error.value.__cause__ is error.value.__context__ is None


def test_storage_options_may_stand_in_a_sinks_file_with_a_secret_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET", "very/secret+key")
    options = """storage_options = '{"key": "k", "secret": "${S3_SECRET}"}'"""
    (tmp_path / "sinks.toml").write_text(f'[archive]\nbackend = "files"\npath = "s3://bucket/x"\n{options}\n')
    sink = read_sinks(tmp_path / "sinks.toml", Redaction())["archive"]
    assert isinstance(sink, FileSink)
    assert sink._store == S3("bucket", "x", {"key": "k", "secret": "very/secret+key"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'path'"),
        ({"path": ""}, "needs the option 'path'"),
        ({"path": None}, "needs the option 'path'"),
        ({"path": "sftp://host/orders"}, "'path' of the file sink must be .* a URL of one of file, local, s3"),
        ({"path": "s3:///orders"}, "has no name of a bucket"),
        ({"path": "hdfs:///"}, "must name a folder"),
        ({"path": "memory://"}, "must name a folder"),
        ({"path": "/x", "storage_options": {"key": "k"}}, "'storage_options' of the file sink is only for URLs"),
        ({"path": "memory://x", "storage_options": "{"}, "'storage_options' of the file sink must be a mapping"),
        ({"path": "simplecache::file:///x"}, "a URL of one of file, local"),
        ({"path": "file://data/orders"}, "names a host, 'data'. Write file:///data/orders"),
        ({"path": "/x", "fromat": "json"}, r"'fromat'. Did you mean 'format'\? Its options: path, storage_options"),
        ({"path": "/x", "zzz": "1"}, "no option 'zzz'. Its options: path, storage_options"),
        ({"path": "/x", "format": "xml"}, "'format' of the file sink must be one of parquet, json"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_wrong_option_is_refused_with_what_is_known(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileSink(options)


@pytest.mark.parametrize(
    ("path", "module", "install"),
    [
        ("s3://bucket/orders", "s3fs", "Run pip install 'twopc-files[s3]' here and on every executor"),
        ("s3n://bucket/orders", "s3fs", "Run pip install 'twopc-files[s3]' here and on every executor"),
        ("az://container/orders", "adlfs", "Run pip install 'twopc-core[azure]' here and on every executor"),
        (
            "gs://bucket/orders",
            "gcsfs",
            "install gcsfs to access Google Storage. Run pip install 'twopc-core[gcs]' here and on every executor",
        ),
    ],
)
def test_a_store_whose_package_is_missing_says_what_to_install(
    path: str, module: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for protocol in ("s3", "s3a", "gs", "az"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(ConfigurationError) as refused:
        FileSink({"path": path})
    assert install in str(refused.value)
    assert module in str(refused.value)


def test_a_sink_that_was_pickled_writes_to_the_same_folder_in_the_same_format() -> None:
    sink = FileSink({"path": "/data/orders", "format": "json"})
    sink.bind("orders", "log")
    twin = pickle.loads(pickle.dumps(sink))  # noqa: S301  # our own bytes
    assert repr(twin) == repr(sink) == "FileSink('/data/orders', JsonLines(compression='none'))"
