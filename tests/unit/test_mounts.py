"""Which filesystems may show late what other machines write there, by Linux's list."""

import logging
from pathlib import Path

import pytest

from twopc import Coordinator
from twopc.stores import mounts
from twopc.stores.mounts import mount_of
from twopc.testing import MemorySink, MemoryTarget

NFS_DEFAULT = "rw,vers=4.2,rsize=1048576,hard,proto=tcp,timeo=600,sec=sys,local_lock=none,addr=10.0.0.7"


def line(point: str, filesystem: str, options: str = "rw", optional: str = "shared:1 ") -> str:
    return f"36 35 98:0 / {point} rw,noatime {optional}- {filesystem} server:/export {options}\n"


ROOT = line("/", "ext4")


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for ``/proc/self/mountinfo``."""
    path = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "_MOUNTS", path)
    return path


@pytest.mark.parametrize(
    ("filesystem", "options"),
    [
        ("nfs", "rw,vers=3,acregmin=1,acdirmax=10"),
        ("nfs4", NFS_DEFAULT),
        ("nfs4", f"{NFS_DEFAULT},lookupcache=none"),  # listings come from memory all the same
        ("cifs", "rw,vers=3.1.1,cache=strict,username=orders,actimeo=1"),
        ("smb3", "rw,acregmax=1,acdirmax=1"),
        ("fuse.sshfs", "rw,user_id=0,group_id=0"),
        ("fuse.juicefs", "rw"),
        ("fuse", "rw"),
    ],
)
def test_a_network_filesystem_that_caches_or_may_cache_may_be_late(listed: Path, filesystem: str, options: str) -> None:
    listed.write_text(ROOT + line("/mnt/shared", filesystem, options))
    mount = mount_of(Path("/mnt/shared/twopc/log"))
    assert mount is not None
    assert (mount.point, mount.filesystem, mount.may_be_late) == ("/mnt/shared", filesystem, True)
    assert str(mount) == f"{filesystem}, mounted at /mnt/shared"


@pytest.mark.parametrize(
    ("filesystem", "options"),
    [
        ("nfs4", f"{NFS_DEFAULT},noac"),
        ("nfs4", "rw,vers=4.2,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0"),  # as Linux lists actimeo=0
        ("cifs", "rw,actimeo=0"),
    ],
)
def test_a_network_filesystem_that_asks_its_server_for_each_listing_is_not_late(
    listed: Path, filesystem: str, options: str
) -> None:
    listed.write_text(ROOT + line("/mnt/shared", filesystem, options))
    mount = mount_of(Path("/mnt/shared"))
    assert mount is not None
    assert (mount.is_network, mount.may_be_late) == (True, False)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "overlay", "tmpfs", "ceph", "fuseblk", "fuse.fuse-overlayfs"])
def test_a_local_or_coherent_filesystem_is_not_late(listed: Path, filesystem: str) -> None:
    listed.write_text(ROOT + line("/data", filesystem))
    mount = mount_of(Path("/data/log"))
    assert mount is not None
    assert (mount.is_network, mount.may_be_late) == (False, False)


@pytest.mark.parametrize(
    ("folder", "filesystem"),
    [
        ("/mnt/shared", "nfs4"),
        ("/mnt/shared/log", "nfs4"),
        ("/mnt/shared2/log", "ext4"),
        ("/mnt/shared/disk/log", "xfs"),
        ("/mnt/two words/log", "cifs"),
        ("/mnt/hidden/log", "tmpfs"),
    ],
)
def test_the_mount_of_a_folder_is_the_nearest_above_it_and_there_the_last(
    listed: Path, folder: str, filesystem: str
) -> None:
    listed.write_text(
        ROOT
        + line("/mnt/shared/disk", "xfs", optional="")
        + line("/mnt/shared", "nfs4", optional="shared:1 master:2 ")
        + line(r"/mnt/two\040words", "cifs")
        + line("/mnt/hidden", "nfs4")
        + line("/mnt/hidden", "tmpfs")
        + "what no kernel writes\n"
    )
    mount = mount_of(Path(folder))
    assert mount is not None
    assert mount.filesystem == filesystem


def test_a_folder_is_where_its_links_lead(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/mnt/shared")
    listed.write_text(ROOT + line("/mnt/shared", "nfs4"))
    mount = mount_of(tmp_path / "link" / "log")
    assert mount is not None
    assert mount.filesystem == "nfs4"


def test_a_system_that_lists_no_mounts_tells_nothing(listed: Path) -> None:
    assert not listed.exists()
    assert mount_of(Path("/data")) is None


def test_this_system_tells_where_a_folder_is(tmp_path: Path) -> None:
    if not mounts._MOUNTS.exists():
        pytest.skip("this system has no /proc/self/mountinfo")
    mount = mount_of(tmp_path)
    assert mount is not None
    assert Path(mount.point).is_mount()


@pytest.mark.advice("it may show what other machines write there a minute late")
def test_a_coordinator_warns_once_of_a_log_that_may_be_late_and_goes_on(
    listed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed.write_text(ROOT + line(str(tmp_path), "nfs4", NFS_DEFAULT))
    url = str(tmp_path / "log")
    with caplog.at_level(logging.WARNING):
        for incarnation in (1, 2):
            coordinator = Coordinator({"a": MemorySink(MemoryTarget())}, url, owner="q", rest_interval_s=None)
            assert coordinator.recover().incarnation == incarnation
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == (
        f"the commit log at {url} is on nfs4, mounted at {tmp_path}: it may show what other machines write there a"
        " minute late, so a driver that still runs on one of them could roll back what a newer driver has decided;"
        " mount NFS or SMB with actimeo=0, have all drivers on one machine, or keep the log at an object store"
    )
    listed.write_text(ROOT + line(str(tmp_path), "cifs", "rw,actimeo=0"))
    caplog.clear()
    Coordinator({"a": MemorySink(MemoryTarget())}, f"{url}-anew", owner="q", rest_interval_s=None).recover()
    assert caplog.records == []


def test_a_coordinator_does_not_warn_of_a_log_on_a_disk_or_elsewhere(
    listed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed.write_text(ROOT)
    for url in (str(tmp_path / "log"), f"memory://{tmp_path}"):
        Coordinator({"a": MemorySink(MemoryTarget())}, url, owner="q", rest_interval_s=None).recover()
    assert caplog.records == []
