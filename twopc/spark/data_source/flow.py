"""A flow of a declarative pipeline: where Spark keeps its checkpoints, and how a full refresh affects its log.

Spark runs a flow as a streaming query that has the flow's name. Its checkpoint is the highest-numbered folder in
``<storage>/_checkpoints/<sink>/<flow>``. A full refresh adds the next number, so the flow becomes a new query, which
reads its source from the beginning and writes to the same sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from twopc.checkpoint.folder import CheckpointFolder
from twopc.errors import ConfigurationError, LogMismatch
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store

_CHECKPOINTS = "_checkpoints"


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that writes to a sink of a pipeline."""

    name: str
    folder: str  # the URL of the folder with its checkpoints
    number: int  # the number of the current checkpoint: how many full refreshes there were

    @classmethod
    def of(cls, checkpoint: str, query_name: str) -> Flow | None:
        """Return the flow that has this checkpoint, or None if no pipeline runs the query."""
        folder, _, number = checkpoint.rpartition("/")
        above, _, quoted = folder.rpartition("/")
        name = unquote(quoted)  # Spark URL-encodes it
        is_named = query_name == name or query_name.endswith(f".{name}")  # for a table, the database precedes it
        if not (name and is_named and number.isdecimal() and _CHECKPOINTS in above.split("/")):
            return None
        return cls(name, folder, int(number))

    def refuse_full_refresh(self, log: str, query_id: str) -> None:
        """Raise LogMismatch if the log belongs to the query of an earlier checkpoint of this flow: after a full
        refresh, the new query would write the same records again."""
        tail = read_tail(open_store(log)) if self.number else None
        if tail is None or tail[1].owner == query_id or tail[1].owner not in self._earlier_queries():
            return
        raise LogMismatch(
            f"a full refresh of flow {self.name!r} would write again what the sink has already: the commit log at {log}"
            f" belongs to the flow's earlier query {tail[1].owner}, and this is query {query_id}. Nothing was written."
            f" To go on without the refresh, delete {self.folder}/{self.number}. To write everything again, settle what"
            " is in doubt with 'twopc resolve', empty the target system, and delete the log. Then run the pipeline."
        )

    def _earlier_queries(self) -> set[str]:
        found = set()
        for number in range(self.number):
            try:
                found.add(CheckpointFolder(f"{self.folder}/{number}").query_id())
            except ConfigurationError:
                continue  # it was deleted
        return found
