"""All uses of fsspec's private names: methods for its own file systems, and WebHDFS's proxy.

They were read in 2026.9.0; the bounds of fsspec, adlfs and gcsfs exclude releases from 2028 on. If a release renames
a method, sinks and logs at a URL fail before the first batch. Subclasses of fsspec's file systems use the private names
of their bases in their own modules.
"""

from __future__ import annotations

from typing import Any


def path_of(client: Any, url: str) -> Any:
    """Return the path of a URL or local path in the form that a file system class takes."""
    return client._strip_protocol(url)  # noqa: SLF001


def options_of(client: Any, url: str) -> Any:
    """Return the file system options that a URL contains."""
    return client._get_kwargs_from_urls(url)  # noqa: SLF001


def behind_proxy(client: Any, url: str) -> Any:
    """Return a DataNode's URL as mapped by the option ``data_proxy``."""
    return client._apply_proxy(url)  # noqa: SLF001
