"""The options of the Delta sink, with their checks and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import UPSERT_BY, Option, flag, mapping, parse, place, refuse_unknown, whole_number
from twopc_delta.storage import Storage

OWNER = "the delta sink"


OPTIONS = (
    Option(
        "path",
        place(),
        "the table's folder. Driver and executors must reach the same disk or store by it. The table must exist: the"
        " sink creates none",
        needed=True,
    ),
    Option(
        "storage_options",
        mapping(),
        "for an object store, as fsspec names them: the backend's README lists them",
    ),
    Option(
        "merge_schema",
        flag(),
        "add columns that the table lacks, before the first batch that has them is written (Spark's `mergeSchema`)",
        default=False,
    ),
    Option(
        "target_file_bytes",
        whole_number(least=1, values="bytes"),
        "a task begins a new file when one has reached this size",
        # Delta's own writers aim for 128 MiB to 1 GiB. Smaller files cost less when a task fails.
        default=128 * 1024 * 1024,
    ),
    UPSERT_BY,
)

_REFUSED = {
    "replaceWhere": "the sink only appends",
    "overwriteSchema": "the sink only appends. Change the table with ALTER TABLE, while the query is stopped",
    "partitionOverwriteMode": "the sink only appends",
    "txnAppId": "the sink has a mark of its own in the table for each query and sink",
    "txnVersion": "the sink has a mark of its own in the table for each query and sink",
}
"""An option of Spark's Delta writer → why this sink does not support it."""


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """The checked options.

    Attributes:
        storage: the table's folder, and how to access it. Its repr shows no credentials.
        merge_schema: whether to add columns that the table lacks.
        target_file_bytes: the size at which a task begins a new file.
        upsert_by: the columns by which a record replaces a row; empty if records are only added.
    """

    storage: Storage
    merge_schema: bool
    target_file_bytes: int
    upsert_by: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> DeltaOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message repeats no value.
        """
        for name, reason in _REFUSED.items():
            if name in options:
                raise ConfigurationError(f"{OWNER} does not support the option {name!r}: {reason}.")
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        storage = Storage.at(values["path"], values.get("storage_options", {}))
        return cls(storage, values["merge_schema"], values["target_file_bytes"], values.get("upsert_by", ()))
