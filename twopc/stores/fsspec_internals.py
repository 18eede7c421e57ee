"""fsspec beyond what its users call, all in this module: methods for its own file systems, and WebHDFS's proxy.

Read in 2026.9.0; the bounds of fsspec, adlfs and gcsfs admit no release from 2028 on. In one that has renamed a method,
sinks and logs at a URL fail before the first batch. A file system that derives from one of fsspec's has its base's
methods in its own module.
"""

from __future__ import annotations

from typing import Any


def path_of(client: Any, url: str) -> Any:
    """Return the path of a URL, or of a local path, as a class of file systems takes it."""
    return client._strip_protocol(url)  # noqa: SLF001


def options_of(client: Any, url: str) -> Any:
    """Return the options of a file system that its URL has."""
    return client._get_kwargs_from_urls(url)  # noqa: SLF001


def behind_proxy(client: Any, url: str) -> Any:
    """Return the URL of a DataNode as the option ``data_proxy`` has it."""
    return client._apply_proxy(url)  # noqa: SLF001
