"""The catalog and its table. Neither is sent to tasks with the sink, so each process loads its own."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import requests
from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from pyiceberg.utils.config import Config
from requests import Session
from sqlalchemy import make_url, select
from sqlalchemy.orm import Session as DatabaseSession

from twopc.errors import ConfigurationError
from twopc_iceberg.files import IO_CLASS, DurableFileIO, io_of
from twopc_iceberg.kept_metadata import KeepsMetadata
from twopc_iceberg.options import OF_CATALOG, OWNER, IcebergOptions
from twopc_iceberg.outcomes import CATALOG_ERRORS, is_refused_by_store
from twopc_iceberg.pyiceberg_internals import limit_tokens, offers, post, raise_for
from twopc_iceberg.table import are_expiring, are_given_out, assume_end

HTTP_TIMEOUT_S = (10, 60)
"""How long a REST catalog may take to accept a connection, and to respond. pyiceberg sets no timeout."""

POSTGRES_LIMITS: Mapping[str, str] = {
    "connect_timeout": "10",  # seconds
    "tcp_user_timeout": "30000",  # milliseconds
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "options": "-c statement_timeout=30000 -c lock_timeout=10000",  # milliseconds
}
"""The timeouts of a catalog in PostgreSQL, unless the catalog's URI sets them."""


_HTTP = re.compile(r"https?://[^@\s]+")

_TRANSACTION = Endpoint(http_method=HttpMethod.POST, path="/v1/{prefix}/transactions/commit")
"""The endpoint that changes several tables in one request."""


class Lake:
    """A catalog and one of its tables.

    Caches the table's metadata, which may be older than the catalog's. A commit is still safe, because the catalog
    checks the commit's requirements against the current metadata. Errors of pyiceberg and of the catalog's client pass
    through.
    """

    def __init__(self, options: IcebergOptions) -> None:
        self._options = options
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._is_renewing = False  # whether each load returns new credentials

    def load(self) -> Table:
        """Load the table from the catalog."""
        try:
            table = self._table = self.catalog().load_table(self._options.table)
        except CATALOG_ERRORS:
            self.close()  # what the catalog learned when it connected may be wrong, too
            raise
        self._is_renewing = are_given_out(table.io.properties) and not are_given_out(self._options.properties)
        assume_end(table.io.properties)
        return table

    def table(self) -> Table:
        """Return the table as last loaded. Load it again if its credentials are about to expire."""
        if self._table is None or are_expiring(io_of(self._table.io.properties).properties):
            return self.load()
        return self._table

    def seen(self, metadata: TableMetadata, metadata_location: str) -> None:
        """Keep the state of the table that the catalog returned for a commit."""
        assert self._table is not None
        seen = self._table
        self._table = Table(seen.name(), metadata, metadata_location, seen.io, seen.catalog, seen.config)

    def forget_table(self) -> None:
        """Reload the table before its next use."""
        self._table = None

    def failed(self, error: Exception) -> Exception:
        """Return the error to raise for a failed request, and have the table reloaded before the next one: its
        credentials may have expired, and not every catalog says when they expire. If the store refused them, the error
        is permanent unless the catalog renews them."""
        self.forget_table()
        if not is_refused_by_store(error):
            return error
        return TimeoutError(str(error)) if self._is_renewing else PermissionError(str(error))

    def io(self) -> DurableFileIO:
        """Return access to the table's files, with the credentials that came with it."""
        return io_of(self.table().io.properties)

    def catalog(self) -> Catalog:
        """Return the catalog. Connects on first use."""
        if self._catalog is None:
            self._catalog = connected(self._options)
        return self._catalog

    @property
    def group(self) -> str | None:
        """An id shared by all tables that one request can change; None if the catalog supports no such request. Sends
        nothing."""
        catalog = self._catalog
        return catalog.identity if isinstance(catalog, TransactionalCatalog) and catalog.changes_several else None

    def close(self) -> None:
        """Close the catalog. The next use reconnects."""
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None:
            with contextlib.suppress(Exception):
                catalog.close()


def connected(options: IcebergOptions) -> Catalog:
    """Return the catalog that ``options`` name.

    Raises:
        ConfigurationError: the sink is not tested with this type of catalog, or a property or package is missing.
    """
    properties: dict[str, Any] = {**(Config().get_catalog_config(options.catalog) or {}), **options.properties}
    if "uri" not in properties and str(properties.get("type")).lower() != CatalogType.GLUE.value:
        raise ConfigurationError(
            f"nothing says where catalog {options.catalog!r} is: give the option '{OF_CATALOG}uri', or a catalog of"
            " this name in .pyiceberg.yaml on driver and executors."
        )
    properties["py-io-impl"] = IO_CLASS
    match kind := _kind(options, properties):
        case CatalogType.REST:
            if not _HTTP.fullmatch(str(properties["uri"])):  # errors of the client quote it
                raise ConfigurationError(
                    f"the REST catalog {options.catalog!r} must have a URI such as https://catalog.example/api, without"
                    f" a user or a password. Give these as '{OF_CATALOG}credential' or '{OF_CATALOG}token'."
                )
            return TransactionalCatalog(options.catalog, **properties)
        case CatalogType.SQL:
            return _sql(options, properties)
        case CatalogType.GLUE | CatalogType.HIVE:
            try:
                module = import_module(f"twopc_iceberg.{kind.value}")
            except ModuleNotFoundError as missing:
                raise ConfigurationError(
                    f"catalog {options.catalog!r} needs the package {missing.name!r}: run pip install"
                    f" 'twopc-iceberg[{kind.value}]' on driver and executors."
                ) from missing
            catalog: Catalog = module.connected(options, properties, HTTP_TIMEOUT_S)
            return catalog
        case _:
            raise ConfigurationError(
                f"catalog {options.catalog!r} is of the type {kind.value!r}, and {OWNER} is tested with the types"
                f" {_KINDS} alone. Reach it through its REST interface, if it has one."
            )


_KINDS = "'glue', 'hive', 'rest' and 'sql'"


def _kind(options: IcebergOptions, properties: Mapping[str, Any]) -> CatalogType:
    try:
        given = properties.get("type")
        return CatalogType(str(given).lower()) if given else infer_catalog_type(options.catalog, {**properties})  # type: ignore[return-value]
    except ValueError:
        pass  # raised below: an error raised here would chain one that quotes the URI, which may have a password
    raise ConfigurationError(f"catalog {options.catalog!r} needs the option '{OF_CATALOG}type', one of {_KINDS}.")


class TransactionalCatalog(RestCatalog):
    """A REST catalog that may support changing several tables in one request. pyiceberg has no call for such a request.
    Every request has a timeout.

    Attributes:
        identity: equal for all connections to one catalog with the same properties and credentials.
        changes_several: whether the catalog lists the endpoint for such requests, and has refused none.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        given = json.dumps(properties, sort_keys=True, default=str)
        self.identity = hashlib.sha256(given.encode()).hexdigest()  # hashed, since properties may have credentials
        self.changes_several = offers(self, _TRANSACTION)

    def _config_headers(self, session: Session) -> None:
        """Set the timeout of a session before it first fetches a token."""
        session.request = functools.partial(session.request, timeout=HTTP_TIMEOUT_S)  # type: ignore[method-assign]
        super()._config_headers(session)

    def _create_session(self) -> Session:
        session = super()._create_session()
        limit_tokens(self, HTTP_TIMEOUT_S)
        return session

    def commit_tables(self, changes: Sequence[CommitTableRequest]) -> None:
        """Send one request to change several tables. A successful response is empty. Raises the errors of
        ``commit_table``. Never retries, not even when a token has expired."""
        bodies = b",".join(change.model_dump_json().encode() for change in changes)
        response = post(self, "transactions/commit", b'{"table-changes":[%b]}' % bodies)
        try:
            response.raise_for_status()
        except requests.HTTPError as error:
            unknown = dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            raise_for(error, {409: CommitFailedException, **unknown})


class KeptSqlCatalog(KeepsMetadata, SqlCatalog):
    """A SQL catalog that queries its database only for the location of a table's metadata."""

    def load_table(self, identifier: str | Identifier) -> Table:
        load = functools.partial(super().load_table, identifier)
        return self._kept_table(identifier, self._location(identifier), load)

    def _location(self, identifier: str | Identifier) -> str | None:
        """Return the location of the table's metadata from the database."""
        wanted = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(Catalog.namespace_from(identifier)),
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )
        with DatabaseSession(self.engine) as session:
            return session.scalar(wanted)


def _sql(options: IcebergOptions, properties: dict[str, Any]) -> Catalog:
    try:
        url = make_url(properties["uri"])
    except Exception:  # noqa: BLE001  # its text would quote the URI
        url = None
    if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigurationError(
            f"the SQL catalog {options.catalog!r} must have the URI of a SQLite file or of PostgreSQL, such as"
            " sqlite:////data/catalog.db or postgresql://writer@db.example/lake."
        )
    if url.get_backend_name() == "postgresql":
        missing = {name: value for name, value in POSTGRES_LIMITS.items() if name not in url.query}
        url = url.update_query_dict(missing)
    properties["uri"] = url.render_as_string(hide_password=False)
    # The sink creates no tables. pre_ping: a pooled connection may break between batches.
    return KeptSqlCatalog(options.catalog, **{"pool_pre_ping": "true", **properties, "init_catalog_tables": "false"})
