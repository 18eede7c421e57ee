"""Folders that a user names, and those that readers of a sink list."""

from pathlib import Path
from typing import Any

import pytest

from twopc import Coordinator, create_sink
from twopc.errors import ConfigurationError
from twopc.log.store import open_store
from twopc.replay import ReplayCopies
from twopc.stores.places import parsed_place, refuse_within_checkpoint, refuse_within_outputs, refuse_within_source
from twopc.testing import MemorySink, MemoryTarget

OWNER = "query"


def sinks(output: str) -> dict[str, MemorySink]:
    sink = MemorySink(MemoryTarget())
    sink.output_folder = output
    return {"archive": sink}


@pytest.mark.parametrize(
    ("output", "log", "copies", "refusal"),
    [
        *(("{0}/out", "{0}/out" + log, None, r"the commit log is at .* inside .*, where sink 'archive' writes")
          for log in ("", "/", "/log", "/a/b/../log", "/./log")),
        *((output, "file://{0}/out/log", None, "the commit log is at")
          for output in ("file://{0}/out", "{0}/./out/", "local://{0}/out", "{0}/link")),
        ("{0}/out", "out/log", None, r"the commit log is at .*/out/log, inside"),
        *(("{0}" + output, "{0}/log", None, rf"sink 'archive' writes to {{0}}{output}, inside {{0}}/log,")
          for output in ("/log/out", "/log/2026/out", "/log/_out")),
        ("s3://bucket/out", "{0}/log", "s3a://bucket/out/stage",
         "the folder of replay copies is at s3a://bucket/out/stage, inside s3://bucket/out"),
        ("{0}/out", "{0}/log", "{0}/out/stage", "the folder of replay copies is at"),
        ("/out", "", None, "the URL of the commit log is empty"),
        ("/out", " ", None, "the URL of the commit log is empty"),
    ],
)  # fmt: skip
def test_an_output_and_a_log_or_a_stage_are_apart_however_they_are_spelt(
    output: str, log: str, copies: str | None, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    output, log, refusal = (text.format(tmp_path) for text in (output, log, refusal))
    with pytest.raises(ConfigurationError, match=refusal):
        Coordinator(sinks(output), log, owner=OWNER, replay_copies=copies and copies.format(tmp_path))


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("hdfs:///data/out", "hdfs://nn:8020/data/out/stage"),
        ("hdfs://nn/data/out", "webhdfs://nn:9870/data/out/stage"),
        ("hdfs:/data/out", "hdfs://nn/data/out/stage"),
        ("abfs://c/out", "abfss://c@account.dfs.core.windows.net/out/stage"),
        ("az://c@account.blob.core.windows.net/out", "abfs://c/out/stage"),
        ("az://c@account.blob.core.windows.net/out", "abfss://c@account.dfs.core.windows.net/out/stage"),
        ("memory://out", "memory:///out/stage"),
        ("{0}/out", "file:{0}/out/stage"),
        ("{0}/out", "~/out/stage"),
        ("/data/out", "/data/out/_day=1/stage"),  # readers of data sets do not pass over these
        ("/data/out", "/data/out/_spark_metadata/log"),
    ],
)
def test_hadoops_spellings_and_a_home_folder_hide_no_output(
    output: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="the folder of replay copies is at"):
        refuse_within_outputs("the folder of replay copies", place.format(tmp_path), sinks(output.format(tmp_path)))


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("hdfs://nn/data/out", "hdfs://other/data/out/stage"),
        ("hdfs://nn/data/out", "s3://nn/data/out/stage"),
        ("hdfs://nn/data/out", "/data/out/stage"),
        ("abfss://c@account.dfs.core.windows.net/out", "abfss://c@other.dfs.core.windows.net/out/stage"),
        ("abfss://c@account.dfs.core.windows.net/out", "abfs://d/out/stage"),
        *(("/data/out", f"/data/out/{hidden}") for hidden in ("_checkpoint", ".log", "year=2026/_log/a")),
    ],
)
def test_the_same_path_of_another_store_and_what_readers_pass_over_is_none_of_the_output(
    output: str, place: str
) -> None:
    refuse_within_outputs("the checkpoint", place, sinks(output))


def test_a_log_is_where_hadoops_spelling_or_a_home_folder_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for number, log in enumerate([f"file:{tmp_path}/0", "~/1"]):
        with Coordinator(sinks("/elsewhere"), log, owner=OWNER) as coordinator:
            coordinator.recover()
        assert list((tmp_path / str(number)).glob("*.json"))


@pytest.mark.parametrize("log", ["", "/", "/offsets", "/commits/log", "/sources/0", "/state", "/metadata"])
def test_a_log_in_what_spark_has_in_its_checkpoint_is_refused(log: str) -> None:
    with pytest.raises(ConfigurationError, match=r"a subfolder of its own, such as file:/query/twopc-log"):
        refuse_within_checkpoint(f"file:///query{log}", "file:/query")


@pytest.mark.parametrize("log", ["/query/twopc-log", "/query/log/offsets", "/log", "/", "s3://query/offsets"])
def test_a_log_beside_what_spark_has_in_its_checkpoint_is_not(log: str) -> None:
    refuse_within_checkpoint(log, "file:/query")


@pytest.mark.parametrize(
    ("log", "source"),
    [("/in", "file:/in"), ("/in/log", "file:///in"), ("s3a://in/log", "s3://in"), ("/in/log", "file:/in/*")],
)
def test_a_log_among_the_files_that_the_query_reads_is_refused(log: str, source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the commit log is at .*in/?.*, and the query reads the files of "):
        refuse_within_source("the commit log", log, source)


@pytest.mark.parametrize(
    ("log", "source"),
    [("/log", "file:/in"), ("/in/_log", "file:/in"), ("/in/log", "file:/in/*.json"), ("/in/log", "file:/in/[a-k]*")],
)
def test_a_log_that_a_file_source_does_not_list_is_not(log: str, source: str) -> None:
    refuse_within_source("the commit log", log, source)


def test_a_folder_may_be_given_as_a_path(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log")
    store.put_if_absent(0, b"an entry")
    assert store.url == str(tmp_path / "log")
    assert open_store(str(tmp_path / "log")).slots() == [0]
    stage: Any = tmp_path / "stage"
    assert ReplayCopies(stage).url == str(stage)
    assert parsed_place("the log", Path("file:///data/log")) == ("file", "/data/log")  # pathlib drops two slashes


def test_a_coordinator_takes_a_log_and_a_stage_as_paths(tmp_path: Path) -> None:
    with Coordinator(
        sinks("/elsewhere"), tmp_path / "log", owner=OWNER, replay_copies=tmp_path / "stage"
    ) as coordinator:
        coordinator.recover()
    assert list((tmp_path / "log").glob("*.json"))


@pytest.mark.parametrize(
    ("log", "copies"), [(None, None), (7, None), (b"/data/log", None), ("memory://log", 7), ("memory://log", b"/stage")]
)
def test_a_coordinator_whose_log_or_stage_is_no_folder_says_what_to_give(log: Any, copies: Any) -> None:
    what = "the commit log" if copies is None else "of replay copies"
    with pytest.raises(ConfigurationError, match=f"{what} must be a folder, given as path or URL such as /data"):
        Coordinator(sinks("/elsewhere"), log, owner=OWNER, replay_copies=copies)


@pytest.mark.parametrize(
    ("given", "told"), [(None, "None"), (b"/data/log", "bytes"), (7, "int"), ({"key": "hunter2"}, "dict")]
)
def test_what_is_no_folder_is_refused_with_what_to_give(given: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_store(given)
    assert refused.value.message == (
        f"the commit log must be a folder, given as path or URL such as /data/log or s3://bucket/log, not {told}"
    )
    with pytest.raises(ConfigurationError, match="the folder of replay copies must be a folder, given as path or URL"):
        ReplayCopies(given)


AZURES = "abfss://account.dfs.core.windows.net/container/sub/log"


@pytest.mark.parametrize(
    ("ask", "url", "refusal"),
    [
        (open_store, Path("s3://bucket/log"), r"'s3:/bucket/log' has no name of a bucket: write s3://bucket/folder"),
        (ReplayCopies, "s3:/bucket/stage", "has no name of a bucket"),
        (ReplayCopies, "gs:///bucket/stage", "has no name of a bucket"),
        (open_store, AZURES, r"write abfss://container@account.dfs.core.windows.net/sub/log;"),
        (ReplayCopies, AZURES, r"write abfss://container@account.dfs.core.windows.net/sub/log;"),
    ],
)
def test_a_url_without_its_bucket_or_container_is_refused_with_the_right_spelling(
    ask: Any, url: str | Path, refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        ask(url)


@pytest.mark.parametrize(
    ("given", "url"),
    [("hdfs:/stage", "hdfs:///stage"), ("file:/stage", "file:///stage"), ("s3://bucket/a", "s3://bucket/a")],
)
def test_a_stage_is_where_hadoops_spelling_says(given: str, url: str) -> None:
    assert ReplayCopies(given).url == url


@pytest.mark.parametrize(
    "url",
    [
        *("s3://AKIA:abc/def@bucket/log", "s3://AKIA:12/34@bucket/log", "s3://key:secret@bucket/log"),
        *("s3:/key:secret@bucket/log", "hdfs://me:pw@nn:80/log", "abfs://container/log?sv=2026-01-01&sig=secret"),
    ],
)
def test_a_password_is_known_though_it_contains_a_slash(url: str) -> None:
    with pytest.raises(ConfigurationError, match="holds a password") as refused:
        parsed_place("the log", url)
    assert not {"abc", "def", "secret", "pw@"} & set(str(refused.value).split())
    assert url not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("hdfs://nn:8020/log@home", "hdfs://me@nn:8020/a@b", "sftp://host:22/stage/a@b", "s3://bucket/a:b@c"),
        *("abfs://folder@account/log", "/data/a:b@c"),
    ],
)
def test_a_port_and_a_path_are_no_password(url: str) -> None:
    parsed_place("the log", url)


def test_the_file_sink_names_its_folder(tmp_path: Path) -> None:
    archive = create_sink("files", {"path": f"{tmp_path}/out"})
    with pytest.raises(ConfigurationError, match="the commit log is at"):
        Coordinator({"archive": archive}, f"{tmp_path}/out/log", owner=OWNER)


@pytest.mark.parametrize("log", ["/out-log", "/log", "/ou"])
def test_a_folder_beside_the_output_is_none_of_it(log: str, tmp_path: Path) -> None:
    with Coordinator(
        sinks(f"{tmp_path}/out"), f"{tmp_path}{log}", owner=OWNER, replay_copies=f"{tmp_path}/out-stage"
    ) as coordinator:
        coordinator.recover()


@pytest.mark.parametrize("stage", ["s3://my-key:my-secret@bucket/stage", "file://data/stage"])
def test_the_stage_has_the_same_rules_for_its_url_as_the_log(stage: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"URL of the folder of replay copies holds a password|names a host"
    ) as refused:
        Coordinator(sinks("/out"), f"{tmp_path}/log", owner=OWNER, replay_copies=stage)
    assert "my-" not in str(refused.value)
