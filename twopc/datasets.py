"""Names of the datasets that sinks write to, for lineage catalogs.

The names follow OpenLineage's naming conventions (``spec/Naming.md``), as OpenLineage's own integrations do, so that
catalogs connect a sink's output to the jobs that read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from twopc.stores.places import LOCAL, SIGNED, holds_password, split

_OBJECTS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "abfss"),
    **dict.fromkeys(("wasb", "wasbs"), "wasbs"),
}
"""Object store protocol → scheme of its namespace. Object names have no leading slash."""

_OF_AZURE = ("abfss", "wasbs")  # in their URLs, a container precedes the '@', not a user


_PORT = re.compile(r":[0-9]+$")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset that a sink writes to.

    Attributes:
        namespace: the system that holds it, such as ``kafka://broker.example:9092``, without credentials.
        name: its name in that system, such as a topic.
    """

    namespace: str
    name: str


def of_folder(url: str, storage_options: Mapping[str, Any] = MappingProxyType({})) -> Dataset:
    """Return the dataset of a folder, given as a path or URL. The account of an Azure container comes from the URL,
    from fsspec's ``storage_options``, or from the environment."""
    protocol, path = split(url)
    if protocol is None or protocol in LOCAL:
        return Dataset("file", os.path.abspath(path))  # noqa: PTH100  # of a text
    if SIGNED.search(path):
        path = path.partition("?")[0]
    if holds_password(protocol, path):
        path = path.rpartition("@")[2]
    authority, _, folder = path.partition("/")
    scheme = _OBJECTS.get(protocol, protocol)
    if scheme not in _OF_AZURE:
        authority = authority.rpartition("@")[2]
    elif "@" in authority:
        authority = authority.replace(".blob.", ".dfs.", 1)
    elif account := _account_of(storage_options):
        authority = f"{authority}@{account}.dfs.core.windows.net"
    name = folder.strip("/")
    return Dataset(f"{scheme}://{authority}", name if protocol in _OBJECTS and name else f"/{name}")


def _account_of(storage_options: Mapping[str, Any]) -> str | None:
    """Return the Azure Storage account that adlfs uses, or None."""
    variable = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    connection = str(storage_options.get("connection_string") or variable)
    if named := re.search(r"(?:^|;)AccountName=([^;]+)", connection):
        return named[1]
    return storage_options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")


def of_topic(bootstrap_servers: str, topic: str) -> Dataset:
    """Return the dataset of a Kafka topic. The first bootstrap server stands for the cluster."""
    server = bootstrap_servers.partition(",")[0].strip().rpartition("/")[2]
    return Dataset(f"kafka://{server}" if _PORT.search(server) else f"kafka://{server}:9092", topic)


def of_table(scheme: str, host: str, port: int | str, *names: str) -> Dataset:
    """Return the dataset of a table on a database server. ``names``: its path, such as database, schema and table."""
    return Dataset(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", ".".join(names))
