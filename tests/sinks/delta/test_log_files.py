"""A table's log is taken for known only if it has every entry, and an entry is on the disk before a reader sees it."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.delta.conftest import Place
from twopc.errors import ConfigurationError
from twopc_delta.log_files import LogFiles
from twopc_delta.storage import Storage

KEYS = "t/_delta_log/"


def entry(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


@pytest.fixture(params=["disk", "s3"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is found after version 1 of a log with the given names."""

    def newest(names: Sequence[str], cut_off: bool = False) -> int | None:
        if request.param == "disk":
            folder = tmp_path / "_delta_log"
            folder.mkdir()
            for name in names:
                (folder / name).touch()
            return LogFiles(Storage.at(str(tmp_path), {})).newest_after(1)
        monkeypatch.setattr(Storage, "filesystem", Store(names, cut_off))
        return LogFiles(Storage.at("s3://bucket/t", {})).newest_after(1)

    return newest


class Store:
    def __init__(self, names: Sequence[str], cut_off: bool) -> None:
        self._keys = [KEYS + name for name in sorted(names)]
        self._cut_off = cut_off

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(
        self,
        method: str,
        *,
        Bucket: str,  # noqa: N803
        Prefix: str,  # noqa: N803
        StartAfter: str,  # noqa: N803
        MaxKeys: int,  # noqa: N803
    ) -> dict[str, Any]:
        assert (method, Bucket, Prefix, MaxKeys) == ("list_objects_v2", "bucket", KEYS, 1000)
        found = [{"Key": key} for key in self._keys if key > StartAfter]
        return {"IsTruncated": self._cut_off, **({"Contents": found} if found else {})}


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ([entry(0), entry(1)], 1),
        ([entry(1), entry(2), entry(3), checkpoint(2), "_last_checkpoint", f"{3:020d}.crc"], 3),
        ([entry(1), entry(2), checkpoint(2)], 2),
        ([entry(1), entry(3)], None),
        ([entry(1), checkpoint(9)], None),
        ([entry(1), entry(2), checkpoint(9), entry(9)], None),
        ([entry(1), f"{1:020d}.{9:020d}.compacted.json", "_commit_x.json.tmp"], 1),
    ],
)
def test_the_newest_version_is_known_where_no_entry_is_missing(log: Any, names: list[str], newest: int | None) -> None:
    assert log(names) == newest


def test_a_listing_that_was_cut_off_shows_nothing_unless_it_is_past_the_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for names, newest in (([entry(2)], None), ([entry(2), "_sidecars/a.parquet"], 2)):
        monkeypatch.setattr(Storage, "filesystem", Store(names, cut_off=True))
        assert LogFiles(Storage.at("s3://bucket/t", {})).newest_after(1) == newest


def test_an_entry_is_on_the_disk_before_it_is_in_the_log_and_its_name_before_the_commit_returns(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        steps.append("aside" if name.endswith(".aside") else name)

    def record_link(source: Any, target: Any) -> None:
        link(source, target)
        steps.append("link")

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    files = LogFiles(Storage.at(place.path, {}))
    files.put(1, b"{}")
    assert steps == ["aside", "link", "_delta_log"]
    with pytest.raises(FileExistsError):
        files.put(1, b"other")
    assert files.entry(1) == b"{}"
    assert sorted(path.name for path in place.log.iterdir()) == [entry(0), entry(1)]
    assert not (place.folder / "_twopc").exists()


def test_a_log_on_another_file_system_than_the_table_takes_entries(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is mounted there: no file is linked from one folder to another."""
    link = os.link

    def within_a_folder(source: Any, target: Any) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", within_a_folder)
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    assert place.values() == ["a"]


def test_what_a_killed_trial_has_left_in_the_log_is_removed_once_it_is_old(place: Place) -> None:
    names = (".old.aside", ".old.probe", ".new.aside", ".new.probe")
    for name in names:
        left = place.log / name
        left.touch()
        if "old" in name:
            os.utime(left, (1, 1))
    place.sink()
    assert [(place.log / name).exists() for name in names] == [False, False, True, True]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_a_log_that_takes_no_entries_is_refused_before_anything_is_decided(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = os.link

    def not_into_the_log(source: Any, target: Any) -> None:
        if Path(target).parent.name == "_delta_log":
            raise OSError(number, os.strerror(number))
        link(source, target)

    monkeypatch.setattr(os, "link", not_into_the_log)
    with pytest.raises(ConfigurationError, match="can't use"):
        place.sink()
    assert sorted(path.name for path in place.log.iterdir()) == [entry(0)]


@pytest.mark.parametrize(
    ("names", "stays"),
    [([entry(0)], False), ([entry(0), entry(4)], True), ([checkpoint(4)], True), ([checkpoint(3)], False)],
)
def test_an_entry_is_withdrawn_only_where_it_follows_a_gap(tmp_path: Path, names: Sequence[str], stays: bool) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for name in names:
        (log / name).touch()
    (log / entry(5)).write_bytes(b"ours")
    files = LogFiles(Storage.at(str(tmp_path), {}))
    files.withdraw(5, b"not ours")
    assert (log / entry(5)).exists()
    files.withdraw(5, b"ours")
    assert (log / entry(5)).exists() is stays
