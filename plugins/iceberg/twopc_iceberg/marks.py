"""The mark of a query in the table: the newest batch of it that is visible.

The mark is a property of the table, set by the same commit that adds the batch's snapshot. ``expire_snapshots`` removes
summaries of snapshots, and leaves properties alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from twopc.errors import OperatorRequired

PREFIX = "twopc.committed."

SCOPE, BATCH = "twopc.scope", "twopc.batch"
"""What the summary of a batch's snapshot has, beside the mark in the table's properties."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of one sink of one log.

    Attributes:
        scope: the start of the names of the sink's transactions, without the last dot.
    """

    scope: str

    @classmethod
    def of(cls, scope: str) -> Mark:
        return cls(scope.rstrip("."))

    @property
    def property(self) -> str:
        """The name of the property."""
        return f"{PREFIX}{self.scope}"

    def found(self, metadata: TableMetadata) -> int | None:
        """Return the newest visible batch by the table's property; None if there is no such property.

        Raises:
            OperatorRequired: the property is not a number. Which batches are visible is not known then.
        """
        value = metadata.properties.get(self.property)
        if value is not None and not (value.isascii() and value.isdecimal()):
            raise OperatorRequired(
                f"the table's property {self.property!r} is {value[:50]!r}, and must be a number: it was changed by"
                " hand. Set it to the newest batch of this query that the table has, and start again. The summary of"
                f" the batch's snapshot has that number as {BATCH!r}."
            )
        return None if value is None else int(value)

    def snapshot(self, metadata: TableMetadata, batch_id: int) -> int | None:
        """Return the id of the snapshot that added the batch, if the table still has it."""
        wanted = str(batch_id)
        for snapshot in reversed(metadata.snapshots):
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if found.get(BATCH) == wanted and found.get(SCOPE) == self.scope:
                return snapshot.snapshot_id
        return None
