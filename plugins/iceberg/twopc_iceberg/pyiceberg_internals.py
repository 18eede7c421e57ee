"""Every undocumented name of pyiceberg that the sink uses, and what breaks if a release changes it.

They were read in 0.12.0; ``pyproject.toml`` admits no other minor version. Overridden methods are in their subclasses,
and a test compares them with pyiceberg's.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import requests
from pyiceberg.catalog.rest.auth import OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs
from pyiceberg.manifest import DataFile

if TYPE_CHECKING:
    from pyiceberg.catalog.hive import HiveCatalog
    from pyiceberg.catalog.rest import Endpoint, RestCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

raise_for = _handle_non_200_response
"""Raise the error for a REST catalog's response. If it changes, the sink's import fails."""

parquet_options = _get_parquet_writer_kwargs
"""Return pyarrow's options for the properties of a table. If it changes, the sink's import fails."""


def data_file(**arguments: Any) -> DataFile:
    """Return a data or delete file with the fields of format version 3, the newest. If it changes, each task fails."""
    return DataFile.from_args(_table_format_version=3, **arguments)


def offers(catalog: RestCatalog, endpoint: Endpoint) -> bool:
    """Return whether the catalog lists an endpoint. If it changes, connecting to the catalog fails."""
    return endpoint in catalog._supported_endpoints  # noqa: SLF001


def post(catalog: RestCatalog, path: str, data: bytes) -> requests.Response:
    """Send a POST request to the catalog. If it changes, each joint commit fails."""
    return catalog._session.post(catalog.url(path), data=data)  # noqa: SLF001


def limit_tokens(catalog: RestCatalog, timeout_s: tuple[float, float]) -> None:
    """Limit how long the catalog waits for a new token. If pyiceberg renames ``_refresh_token``, an unresponsive server
    silently hangs the query."""
    if isinstance(catalog._auth_manager, OAuth2AuthManager):  # noqa: SLF001
        provider = catalog._auth_manager.token_provider  # noqa: SLF001
        provider._refresh_token = functools.partial(_refresh_token, provider, timeout_s)  # type: ignore[method-assign]  # noqa: SLF001


def _refresh_token(provider: OAuth2TokenProvider, timeout_s: tuple[float, float]) -> None:
    """Refresh the token as pyiceberg does, but with a timeout."""
    data = {"grant_type": "client_credentials"} | ({"scope": provider.scope} if provider.scope else {})
    headers = {"Authorization": provider._client_secret_header}  # noqa: SLF001
    response = requests.post(provider.token_url, data=data, headers=headers, timeout=timeout_s)
    response.raise_for_status()
    answer = response.json()
    lasts_s = answer.get("expires_in", provider.expires_in)
    if lasts_s is None:
        raise ValueError("the token's server does not report expires_in: set it in the catalog's properties")
    provider._token = answer["access_token"]  # noqa: SLF001
    provider._expires_at = time.monotonic() + lasts_s - provider.refresh_margin  # noqa: SLF001


def glue_input(name: str, location: str, metadata: TableMetadata, known: Any) -> Any:
    """Return a table's input to ``UpdateTable``. If it changes, the probe before the first batch fails."""
    from pyiceberg.catalog.glue import _construct_table_input  # needs the extra 'glue'

    return _construct_table_input(name, location, metadata.properties, metadata, known)


def hive_columns(schema: Schema, location: str) -> Any:
    """Return a table's columns with Hive's types. Raises KeyError for an unknown type. If it changes, the probe before
    the first batch fails."""
    from pyiceberg.catalog.hive import _construct_hive_storage_descriptor  # needs the extra 'hive'

    return _construct_hive_storage_descriptor(schema, location)


def connect_hive(catalog: HiveCatalog, connections: Any) -> None:
    """Have the catalog use other connections. If pyiceberg renames ``_client``, requests have no timeout, and locks do
    not name their process."""
    catalog._client = connections  # noqa: SLF001
