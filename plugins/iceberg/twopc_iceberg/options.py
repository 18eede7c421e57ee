"""The options of the Iceberg sink, with their checks and defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH

from twopc.errors import ConfigurationError
from twopc.options import UPSERT_BY, Kind, Option, choice, names, parse, text, unknown, whole_number

OWNER = "the iceberg sink"

OF_CATALOG = "catalog."
"""The prefix of options that are passed on to pyiceberg's catalog."""

EQUALITY, POSITION = "equality", "position"
"""The ways to delete rows."""

_PASSED_ON = f"and {OF_CATALOG}* for the properties of the catalog"

_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)+")


def _table(given: Any) -> str:
    name = text().read(given)
    if not _NAME.fullmatch(name):
        raise ValueError
    return str(name)


OPTIONS = (
    Option(
        "table",
        Kind("text", "a name with its namespace, such as sales.orders", _table),
        "the namespace and the name, as `sales.orders`. The table must exist: the sink creates none",
        needed=True,
    ),
    Option(
        "catalog",
        text(),
        "the catalog's name. pyiceberg reads the properties of a catalog of this name from `.pyiceberg.yaml` and from"
        " `PYICEBERG_CATALOG__<NAME>__*`. SQL catalogs also keep tables under it",
        default="default",
    ),
    Option(
        "branch",
        text(),
        "the branch that batches are appended to, for write-audit-publish. Any but `main` must exist",
        default=MAIN_BRANCH,
    ),
    Option(
        "target_file_bytes",
        whole_number(least=1, values="bytes"),
        "a task begins a new data file when one has reached this size",
        default_text="the table's `write.target-file-size-bytes`, or 512 MiB",
    ),
    UPSERT_BY,
    Option(
        "deletes",
        choice(EQUALITY, POSITION),
        "with `upsert_by`: `equality` has tasks write the keys as delete files; `position` has the driver find the rows"
        " of the keys, for readers that do not apply equality deletes",
        default=EQUALITY,
    ),
)

NOT_PASSED_ON = ("py-io-impl", "py-catalog-impl", "init_catalog_tables")
"""Catalog properties that the sink sets itself."""


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """The checked options. The repr hides the catalog's properties, which may contain credentials.

    Attributes:
        table: the namespace and the name, with dots.
        catalog: the catalog's name.
        properties: the given properties of the catalog, without the prefix.
        branch: the branch that batches are appended to.
        deletes: how rows are deleted, ``equality`` or ``position``.
        target_file_bytes: the size at which a task begins a new data file; None for the table's setting.
        upsert_by: the columns by which a record replaces a row; empty if records are only added.
    """

    table: str
    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    branch: str
    deletes: str
    target_file_bytes: int | None = None
    upsert_by: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> IcebergOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message repeats no value.
        """
        passed_on = {name: str(value) for name, value in options.items() if name.startswith(OF_CATALOG)}
        own = {name: value for name, value in options.items() if name not in passed_on}
        if strangers := sorted(own.keys() - {*names(OPTIONS)}):
            raise unknown(OWNER, strangers[0], names(OPTIONS), _PASSED_ON)
        properties = {name.removeprefix(OF_CATALOG): value for name, value in passed_on.items()}
        for name in NOT_PASSED_ON:
            if name in properties:
                raise ConfigurationError(f"{OWNER} sets {name!r} itself: leave out the option '{OF_CATALOG}{name}'.")
        values = parse(OWNER, OPTIONS, own, _PASSED_ON)
        if "deletes" in own and "upsert_by" not in values:
            raise ConfigurationError(f"{OWNER} takes 'deletes' only with 'upsert_by'.", option="deletes")
        return cls(properties=properties, **values)

    def __str__(self) -> str:
        """Return the table, its catalog and the branch, for messages."""
        branch = "" if self.branch == MAIN_BRANCH else f", branch {self.branch!r},"
        return f"table {self.table}{branch} of catalog {self.catalog!r}"
