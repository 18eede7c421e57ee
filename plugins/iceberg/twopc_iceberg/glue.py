"""AWS Glue as a catalog, through its native API. A commit is ``UpdateTable`` with the ``VersionId`` that was read: if
the table has another version by then, Glue rejects the update with ``ConcurrentModificationException``."""

from __future__ import annotations

import errno
import functools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session
from pyiceberg.catalog import BOTOCORE_SESSION, METADATA_LOCATION
from pyiceberg.catalog.glue import GLUE_CONNECTION_S3_TABLES, GLUE_MAX_RETRIES, GlueCatalog
from pyiceberg.exceptions import NoSuchIcebergTableError, RESTError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from twopc.errors import ConfigurationError
from twopc.failures import mapped
from twopc.stores.s3 import translate
from twopc_iceberg.kept_metadata import KeepsMetadata, ProbedCatalog
from twopc_iceberg.options import OF_CATALOG
from twopc_iceberg.pyiceberg_internals import glue_input

if TYPE_CHECKING:
    from twopc_iceberg.options import IcebergOptions

RETRIES = 3
"""How often the client retries a request. If a retried update is rejected because its first attempt succeeded, the
client reports a conflict. That is safe: after a conflict the table is reloaded."""

_LONGEST_COMMENT = 255  # characters, in one line

_OF_OTHERS = ("Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "PartitionKeys")
"""Fields that an update removes unless it repeats them. pyiceberg does not repeat them."""

_BUSY = frozenset(
    (
        *("ThrottlingException", "Throttling", "TooManyRequestsException", "OperationTimeoutException"),
        *("InternalServiceException", "ServiceUnavailableException", "ResourceNotReadyException"),
    )
)
"""Codes of transient errors. Glue returns most of them with status 400."""

_DENIED = frozenset(
    (
        *("AccessDeniedException", "UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException"),
        *("InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationTokenException"),
    )
)


def connected(options: IcebergOptions, properties: dict[str, Any], timeout_s: tuple[float, float]) -> KeptGlueCatalog:
    """Create the catalog, without sending a request.

    Args:
        options: the sink's options.
        properties: the catalog's properties.
        timeout_s: how long AWS may take to accept a connection, and to respond.

    Raises:
        ConfigurationError: AWS's client rejects the properties, or finds no region.
    """
    session = Session()
    session.set_default_client_config(Config(connect_timeout=timeout_s[0], read_timeout=timeout_s[1]))
    try:
        retries = int(properties.get(GLUE_MAX_RETRIES, RETRIES))
        given = {**properties, GLUE_MAX_RETRIES: retries, BOTOCORE_SESSION: session}
        return KeptGlueCatalog(options.catalog, **given)
    except (BotoCoreError, ValueError) as error:
        why = str(error) if isinstance(error, BotoCoreError) else "a number or a URL is not valid"
        raise ConfigurationError(
            f"catalog {options.catalog!r}: AWS's client does not take the options '{OF_CATALOG}glue.*': {why}"
        ) from None


class KeptGlueCatalog(KeepsMetadata, GlueCatalog, ProbedCatalog):
    """AWS Glue, with its errors mapped to those that ``outcomes`` classifies."""

    _known: Any

    def answers(self) -> AbstractContextManager[None]:
        return mapped((ClientError, BotoCoreError), _meaning, hides_cause=True)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        with self.answers():
            return super().commit_table(table, requirements, updates)

    def probe(self, table: Table) -> None:
        """Try to replace the table with itself under an older ``VersionId``."""
        database, name = self.identifier_to_database_and_table(table.name())
        with self.answers():
            kind = self.glue.get_database(Name=database)["Database"].get("FederatedDatabase", {}).get("ConnectionType")
            if kind == GLUE_CONNECTION_S3_TABLES:
                raise ConfigurationError(
                    f"table {database}.{name} is in S3 Tables, which does not list files as the sink must. Use Glue"
                    " with a bucket of your own."
                )
            known = self._get_glue_table(database, name)
            metadata, location = table.metadata, table.metadata_location
            if known.get("Parameters", {}).get(METADATA_LOCATION) != location:
                raise OSError(errno.EBUSY, f"table {database}.{name} was changed by another writer just now")
            same = glue_input(name, location, metadata, known)
            older = int(known.get("VersionId", "")) - 1
            if older < 0:  # a new table: create a second version first
                older = 0
                self._update_glue_table(database, name, same, str(older))
            self._update_glue_table(database, name, same, str(older))

    def close(self) -> None:
        self.glue.close()

    def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:
        location = glue_table.get("Parameters", {}).get(METADATA_LOCATION)
        if location is None:
            raise NoSuchIcebergTableError(f"{glue_table['DatabaseName']}.{glue_table['Name']} is no Iceberg table")
        load = functools.partial(super()._convert_glue_to_iceberg, glue_table)
        return self._kept_table((glue_table["DatabaseName"], glue_table["Name"]), location, load)

    def _get_glue_table(self, database_name: str, table_name: str) -> Any:
        self._known = super()._get_glue_table(database_name, table_name)
        return self._known

    def _update_glue_table(self, database_name: str, table_name: str, table_input: Any, version_id: str) -> None:
        """Update only Iceberg's fields. Fields set by other tools keep their values as of ``version_id``."""
        stored, wanted = self._known.get("StorageDescriptor", {}), table_input["StorageDescriptor"]
        columns = {column["Name"].lower(): column for column in stored.get("Columns", ())}
        for column in wanted["Columns"]:
            known = columns.get(column["Name"].lower(), {})
            # Glue would reject a longer comment, and only after the decision. The table's metadata keeps it whole.
            comment = " ".join(column.get("Comment", "").split())[:_LONGEST_COMMENT] or known.get("Comment")
            column["Parameters"] = {**known.get("Parameters", {}), **column["Parameters"]}
            if comment:
                column["Comment"] = comment
        of_others = {name: self._known[name] for name in _OF_OTHERS if name in self._known}
        changed = {**of_others, **table_input, "StorageDescriptor": {**stored, **wanted}}
        super()._update_glue_table(database_name, table_name, changed, version_id)


def _meaning(error: ClientError | BotoCoreError) -> Exception:
    """Map an error of AWS's client to one that ``outcomes`` classifies. An unknown code becomes a RESTError."""
    code = error.response["Error"].get("Code") if isinstance(error, ClientError) else None
    if code in _BUSY:
        return OSError(errno.EBUSY, str(error))
    if code in _DENIED or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return PermissionError(errno.EACCES, str(error))
    known = translate(error)
    return RESTError(str(error)) if known.errno == errno.EIO else known
