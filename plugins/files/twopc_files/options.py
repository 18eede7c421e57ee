"""The options of the file sink: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from twopc.errors import ConfigurationError
from twopc_files.format_options import FORMAT_OPTIONS, parse_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc_files.formats import Format

KNOWN = ("path", *FORMAT_OPTIONS)
PROTOCOLS = ("file", "local")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the user asked for, checked.

    Attributes:
        folder: where committed files appear; absolute, so that it means the same on every participant.
        format: what the files are.
    """

    folder: Path
    format: Format

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FileOptions:
        """The options of one sink; any value may be text.

        Raises:
            ConfigurationError: an unknown option, a missing one, or a value that can't be.
        """
        unknown = sorted(str(name) for name in options if name not in KNOWN)
        if unknown:
            near = difflib.get_close_matches(unknown[0].lower(), KNOWN, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"the file sink has no option {unknown[0]!r}.{hint} It knows: {', '.join(KNOWN)}.")
        if not str(options.get("path") or "").strip():
            raise ConfigurationError(
                "the file sink needs the option 'path': the folder for its files, such as file:///data/orders"
            )
        return cls(_folder(str(options["path"])), parse_format(options))


def _folder(url: str) -> Path:
    protocol, rest = split_protocol(url)
    if protocol is None and (hadoop := _SCHEME.match(url)):
        protocol = hadoop[1]  # Hadoop's spelling, file:/data, which fsspec does not split
    elif protocol in PROTOCOLS and not rest.startswith("/"):
        # fsspec reads file://data/orders as a path below the working folder, which differs between processes.
        raise ConfigurationError(
            f"path {url!r} names a host, {rest.split('/')[0]!r}: write {protocol}:///{rest}, with three slashes"
        )
    if protocol not in (None, *PROTOCOLS):
        raise ConfigurationError(
            f"the file sink can't write to {url!r}: {protocol!r} is not one of {', '.join(PROTOCOLS)}. Give"
            " a plain path or a URL such as file:///data/orders"
        )
    # Not resolved: a symbolic link in the path may be moved by its owner between two runs.
    return Path(LocalFileSystem._strip_protocol(url))  # noqa: SLF001  # fsspec's documented way to a path
