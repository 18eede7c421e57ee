"""The commit of a batch to several tables of one REST catalog, by one request: ``POST .../transactions/commit``.

It is a best effort, after which each table's own commit finds out what happened (``snapshot.py``, whose rules hold for
each table). So no answer is believed. A table for which something is wrong is left out: its own commit reports that.

The specification has the catalog change all tables or none. Iceberg's own server compares all requirements, then
changes one table after the other: it may change a part, or report success for a table that it has not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import TOKEN
from pyiceberg.exceptions import ForbiddenError

from twopc.errors import TwoPhaseCommitError
from twopc.threads import call_at_once
from twopc_iceberg.batch_manifests import FileChanged
from twopc_iceberg.catalogs import Lake, TransactionalCatalog
from twopc_iceberg.outcomes import CATALOG_ERRORS, CatalogAnswer, answer, told
from twopc_iceberg.snapshot import Added, BatchCommitter, DecidedBatch, Proposal, pause

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often in a row another writer may be faster in one of the tables, before each commits by itself."""

REFUSALS = (ForbiddenError, NotImplementedError)
"""After these answers, the catalog is not asked to change several tables again until it is connected to anew."""


@dataclass(frozen=True, slots=True)
class Part:
    """One table's part of a joint commit.

    Attributes:
        lake: the table.
        committer: remembers the attempts.
        batch: the batch.
        manifests: writes the manifests of the batch the first time, and returns them. Raises FileChanged.
    """

    lake: Lake
    committer: BatchCommitter
    batch: DecidedBatch
    manifests: Callable[[], Added] = field(repr=False)

    def proposal(self) -> Proposal | None:
        """Return what the request has to change in the table; None if it is done, or left to the table's own commit."""
        try:
            proposal = self.committer.proposal(self.batch, self.manifests)
        except (TwoPhaseCommitError, FileChanged) as error:
            logger.debug("%s, and left out of the joint commit: %s", self.batch.what, error)
            return None
        # pyiceberg takes such a token for all later requests. One request can't carry those of several tables.
        return None if proposal is None or TOKEN in proposal.table.config else proposal

    def look_again(self) -> None:
        """Load the table after another writer was faster."""
        try:
            self.committer.clean_up(self.lake.load())
        except CATALOG_ERRORS as error:
            logger.debug("%s: %s", self.batch.what, told(error))
            self.lake.forget_table()


def commit_parts(begins: Sequence[Callable[[], Part]]) -> None:
    """Try to commit the parts together. Each of ``begins`` returns one, or raises if its own commit would."""
    parts = [part for part in call_at_once(_begun, begins, len(begins)) if part is not None]
    for number in range(ATTEMPTS):
        found = zip(parts, call_at_once(Part.proposal, parts, len(parts)), strict=True)
        # By the table's UUID: one request can't change a table twice, as two sinks or two branches would have it.
        proposals = {part.batch.table: (part, proposal) for part, proposal in found if proposal is not None}
        if len(proposals) < 2:
            return
        parts = [part for part, _ in proposals.values()]
        failure = _asked([proposal for _, proposal in proposals.values()])
        if failure is None or answer(failure) is not CatalogAnswer.CONFLICT:
            for part in parts:
                part.lake.forget_table()  # each one's own commit loads it
            return
        call_at_once(Part.look_again, parts, len(parts))
        pause(number)


def _begun(begin: Callable[[], Part]) -> Part | None:
    try:
        return begin()
    except TwoPhaseCommitError as error:
        logger.debug("left out of the joint commit: %s", error)
        return None


def _asked(proposals: Sequence[Proposal]) -> Exception | None:
    """Send the request once. Returns the error, which does not mean that no table was changed."""
    catalogs = [proposal.table.catalog for proposal in proposals]
    assert isinstance(catalogs[0], TransactionalCatalog)
    try:
        catalogs[0].commit_tables([proposal.request for proposal in proposals])
    except CATALOG_ERRORS as error:
        names = ", ".join(".".join(proposal.table.name()) for proposal in proposals)
        refused = isinstance(error, REFUSALS)
        logger.log(logging.WARNING if refused else logging.DEBUG, "joint commit of tables %s: %s", names, told(error))
        for catalog in catalogs:
            if refused and isinstance(catalog, TransactionalCatalog):
                catalog.changes_several = False
        return error
    return None
