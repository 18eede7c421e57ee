"""The records that readers see, and leftover files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.json

from tests.campaigns.every_step.query import BATCHES, Record, records
from tests.campaigns.stores.foreign import UNCOMMITTED, present
from tests.support.commit_log import newest_decided
from tests.support.contents import difference
from twopc.errors import ConfigurationError
from twopc_files import committed_files
from twopc_files.spark_metadata import spark_metadata

if TYPE_CHECKING:
    from tests.campaigns.every_step.place import Findings
    from tests.campaigns.stores.places import Place

HIDDEN = ("_", ".", "upload ", UNCOMMITTED)
"""How the paths of what no reader sees begin."""

_LISTED = re.compile(r"_(spark_metadata|manifest)/[0-9]+(\.compact)?")


@dataclass(frozen=True)
class View:
    """The records that readers of a folder see at one moment.

    Attributes:
        listing: the committed files in the folder's listing: path → its records.
        logs: the files that each log of complete batches lists; None if the log does not exist yet.
        decided: the newest batch that the commit log has decided; -1 for none.
    """

    listing: Mapping[str, list[Record]]
    logs: Mapping[str, list[str] | None]
    decided: int

    def listed(self, log: str) -> list[Record]:
        """Return the records that a reader of ``log`` sees; if there is no log, those in the folder."""
        paths = self.logs[log]
        # A listed file that does not exist shows as a loss.
        return [record for path in (self.listing if paths is None else paths) for record in self.listing.get(path, ())]


def view(place: Place, foreign: Mapping[str, str]) -> View:
    """Read the folder with independent clients. Raises an error if a file is not complete."""
    fs, folder = place.located()
    paths = [path for path in present(place) if path not in foreign and not path.startswith(HIDDEN)]
    data = fs.cat([f"{folder}/{path}" for path in paths]) if paths else {}
    listing = {path.removeprefix(f"{folder}/"): _read(path, content) for path, content in data.items()}
    decided = newest_decided(place.log)
    logs = {}
    if place.batch_logs:
        logs = {"manifest": _manifest(place), "spark": _spark(place)}
    return View(listing, {log: _own(files, foreign) for log, files in logs.items()}, decided)


def _read(path: str, content: bytes) -> list[Record]:
    kind = path.rsplit("/", 2)[-2].removeprefix("kind=")
    table = pyarrow.json.read_json(io.BytesIO(content))
    return [(row["batch"], row["partition"], row["n"], kind) for row in table.to_pylist()]


def _manifest(place: Place) -> list[str] | None:
    try:
        files = committed_files(place.url, place.storage_options)
    except ConfigurationError:
        return None
    return [file.partition("/data/orders/")[2] for file in files]


def _spark(place: Place) -> list[str] | None:
    fs, folder = place.located()
    try:
        return [file.path for file in spark_metadata(fs, folder, owner="").files()]
    except FileNotFoundError:
        return None


def _own(files: list[str] | None, foreign: Mapping[str, str]) -> list[str] | None:
    return None if files is None else [file for file in files if file not in foreign]


def whole_batches(findings: Findings, when: str, view: View) -> None:
    """Check that no reader of a log sees a part of a batch, and that no reader sees an undecided batch."""
    undecided = {record[0] for found in view.listing.values() for record in found if record[0] > view.decided}
    findings.add("undecided_seen", len(undecided), f"{when}, readers see undecided batches: {sorted(undecided)}")
    for log in view.logs:
        seen = view.listed(log)
        for batch_id in range(BATCHES):
            of_batch = sorted(record for record in seen if record[0] == batch_id)
            is_torn = bool(of_batch) and of_batch != records(batch_id)
            what = f"{when}, the log {log} shows {len(of_batch)} records of batch {batch_id}"
            findings.add("half_batches_seen", is_torn, what)


def all_there(findings: Findings, view: View) -> None:
    """Check that every reader sees exactly the records of an undisturbed run."""
    _compare(findings, "listing", [record for found in view.listing.values() for record in found])
    for log in view.logs:
        _compare(findings, log, view.listed(log))


def _compare(findings: Findings, reader: str, found: Iterable[Record]) -> None:
    there = difference((record for batch_id in range(BATCHES) for record in records(batch_id)), found)
    findings.add("lost", there.lost, f"at the end, the reader of the {reader} misses {there.lost} records")
    findings.add(
        "duplicates", there.duplicates, f"at the end, the reader of the {reader} sees {there.duplicates} twice"
    )


def nothing_left(findings: Findings, place: Place, view: View, foreign: Mapping[str, str]) -> None:
    """Check that no pending file, upload or temporary file is left, and that every foreign file is still there."""
    found = present(place)
    left = [path for path in found if path not in {*view.listing, *foreign} and not _LISTED.fullmatch(path)]
    left = [path for path in left if not path.startswith(UNCOMMITTED)]  # of what was rolled back: Azure removes them
    left += place.unfinished_entries()
    removed = [path for path, state in foreign.items() if found.get(path) != state]
    findings.add("leftovers", len(left), f"left behind: {', '.join(left)}")
    findings.add("foreign_removed", len(removed), f"foreign files removed: {', '.join(removed)}")
