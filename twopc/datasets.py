"""The names under which catalogs of lineage know what a sink writes to.

They follow the naming conventions of OpenLineage (``spec/Naming.md``) as its own integrations do, so that what a sink
writes is the dataset that another job reads.
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
"""The protocols of object stores → the scheme of their namespaces. The names of objects have no slash in front."""

_OF_AZURE = ("abfss", "wasbs")  # what precedes the '@' in their URLs is a container, not a user


_PORT = re.compile(r":[0-9]+$")


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a sink writes to.

    Attributes:
        namespace: the system that has it, such as ``kafka://broker.example:9092``. It contains no credentials.
        name: its name in that system, such as a topic.
    """

    namespace: str
    name: str


def of_folder(url: str, storage_options: Mapping[str, Any] = MappingProxyType({})) -> Dataset:
    """Return the dataset that is a folder, given as path or URL. A container of Azure has its account in the URL, or in
    the ``storage_options`` of fsspec, or in the environment."""
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
    """Return the name of the account of Azure Storage that adlfs uses, or None."""
    variable = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    connection = str(storage_options.get("connection_string") or variable)
    if named := re.search(r"(?:^|;)AccountName=([^;]+)", connection):
        return named[1]
    return storage_options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")


def of_topic(bootstrap_servers: str, topic: str) -> Dataset:
    """Return the dataset that is a topic of Kafka. Of several servers, the first one stands for the cluster."""
    server = bootstrap_servers.partition(",")[0].strip().rpartition("/")[2]
    return Dataset(f"kafka://{server}" if _PORT.search(server) else f"kafka://{server}:9092", topic)


def of_table(scheme: str, host: str, port: int | str, *names: str) -> Dataset:
    """Return the dataset that is a table of a database server. ``names`` lead to it, such as database and schema."""
    return Dataset(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", ".".join(names))
