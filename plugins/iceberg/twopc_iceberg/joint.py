"""Commits a batch to several tables of one REST catalog in one request, ``POST .../transactions/commit``.

This is a best effort, and no response is trusted. Afterwards, each table's own commit finds out what happened, by the
rules of ``snapshot.py``. A table with a problem is left out, and its own commit reports the problem.

By the specification, the catalog changes all tables or none. Iceberg's own server checks all requirements and then
changes one table after the other: it may change only some of them, or report success for a table that it has not
changed.
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
"""How many times in a row the joint commit may lose a race before each table commits by itself."""

REFUSALS = (ForbiddenError, NotImplementedError)
"""After these errors, no joint commit is sent until the catalog reconnects."""


@dataclass(frozen=True, slots=True)
class Part:
    """One table's part of a joint commit.

    Attributes:
        lake: the catalog and the table.
        committer: the committer of this table, which remembers the attempts.
        batch: the batch.
        manifests: returns the batch's manifests, and writes them on the first call. Raises FileChanged.
    """

    lake: Lake
    committer: BatchCommitter
    batch: DecidedBatch
    manifests: Callable[[], Added] = field(repr=False)

    def proposal(self) -> Proposal | None:
        """Return the request's change to the table; None if the batch is visible, or is left to the table's own
        commit."""
        try:
            proposal = self.committer.proposal(self.batch, self.manifests)
        except (TwoPhaseCommitError, FileChanged) as error:
            logger.debug("%s, and left out of the joint commit: %s", self.batch.what, error)
            return None
        # pyiceberg uses such a token for all later requests. One request can't carry the tokens of several tables.
        return None if proposal is None or TOKEN in proposal.table.config else proposal

    def look_again(self) -> None:
        """Reload the table after a lost race."""
        try:
            self.committer.clean_up(self.lake.load())
        except CATALOG_ERRORS as error:
            logger.debug("%s: %s", self.batch.what, told(error))
            self.lake.forget_table()


def commit_parts(begins: Sequence[Callable[[], Part]]) -> None:
    """Try to commit the parts together. Each of ``begins`` returns a part, or raises the error that the table's own
    commit would raise."""
    parts = [part for part in call_at_once(_begun, begins, len(begins)) if part is not None]
    for number in range(ATTEMPTS):
        found = zip(parts, call_at_once(Part.proposal, parts, len(parts)), strict=True)
        # By the table's UUID: one request can't change a table twice, for two sinks or two branches.
        proposals = {part.batch.table: (part, proposal) for part, proposal in found if proposal is not None}
        if len(proposals) < 2:
            return
        parts = [part for part, _ in proposals.values()]
        failure = _asked([proposal for _, proposal in proposals.values()])
        if failure is None or answer(failure) is not CatalogAnswer.CONFLICT:
            for part in parts:
                part.lake.forget_table()  # its own commit reloads the table
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
    """Send the request once. Return the error, if any. Tables may have been changed in spite of an error."""
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
