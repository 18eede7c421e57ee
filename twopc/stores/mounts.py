"""The guarantees of a folder's filesystem, by its name and options as Linux has mounted it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")

_SERVED = frozenset({"nfs", "nfs4", "cifs", "smb3"})
"""The kernel's network filesystems. Their clients list a folder from a cache until its attributes expire: nfs(5),
mount.cifs(8)."""

_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.mergerfs"})

_COHERENT = frozenset({"noac", "actimeo=0", "acdirmax=0"})
"""With any of these, each listing comes from the server. ``lookupcache=none`` affects names, not listings."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem, without its source, which may contain a user name."""

    point: str
    filesystem: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether the client caches, or may cache, another machine's files."""
        is_fuse = self.filesystem == "fuse" or self.filesystem.startswith("fuse.")
        return self.filesystem in _SERVED or (is_fuse and self.filesystem not in _LOCAL_FUSE)

    @property
    def may_be_late(self) -> bool:
        """Whether a listing may lack another machine's files. FUSE does not show its caches, so it counts as late."""
        return self.is_network and not (self.filesystem in _SERVED and self.options & _COHERENT)

    def __str__(self) -> str:
        return f"{self.filesystem}, mounted at {self.point}"


def mount_of(folder: Path) -> Mount | None:
    """Return the mount that ``folder`` is on, or would be; None if the system does not report its mounts."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = os.path.realpath(folder)
    over = [mount for mount in _parse(lines) if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    # The last of several mounts at one point hides the others.
    return max(reversed(over), key=lambda mount: len(mount.point), default=None)


def _parse(lines: list[str]) -> Iterator[Mount]:
    """Parse proc_pid_mountinfo(5): id, parent, device, root, point, options, optional, -, type, source, options."""
    for line in lines:
        of_mount, _, of_filesystem = line.partition(" - ")
        fields, types = of_mount.split(" "), of_filesystem.split(" ")
        if len(fields) >= 6 and len(types) == 3:
            options = frozenset(f"{fields[5]},{types[2]}".split(","))
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            yield Mount(point, types[0], options)
