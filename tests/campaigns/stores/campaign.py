"""``make prove-stores``: kill a writer of files at every step on every store. See ``docs/stores.md``."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.campaigns.every_step.campaign import Proof, Workers, prove, prove_by_blows, run_all, skipped
from tests.campaigns.report import Report
from tests.campaigns.stores.go_servers import PROGRAMS
from tests.campaigns.stores.places import CALLS, COUNTED, StorePlaces, warm_up
from tests.support.gcs_server import PROGRAM as GCS
from tests.support.gcs_server import GcsServer
from tests.support.s3_server import S3Server


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    given = parsed_arguments(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    with ExitStack() as stack:
        s3, gcs = S3Server(given.folder / "s3.log"), GcsServer(given.folder.resolve() / "gcs")
        if "s3" in given.stores:
            stack.enter_context(s3)
        if "gcs" in given.stores and not _obstacle("gcs"):
            stack.enter_context(gcs)

        def proofs_of(store: str) -> dict[str, Proof]:
            if obstacle := _obstacle(store):
                return {store: lambda _: skipped(obstacle)}
            options = (gcs if store == "gcs" else s3).storage_options
            places = StorePlaces(store, given.folder.resolve() / "work", options)
            at_every_step = partial(prove, places, given.steps_stride)
            amid_commits = partial(prove_by_blows, places, given.kills, given.seed)
            if store == "gcs":
                return {store: at_every_step, f"{store} amid commits": amid_commits}
            return {store: amid_commits if store in PROGRAMS else at_every_step}

        proofs = {name: proof for store in given.stores for name, proof in proofs_of(store).items()}
        return run_all(Report(given.folder / "report.json"), proofs, Workers(given.processes, COUNTED))


def _obstacle(store: str) -> str | None:
    """Return why the server of a store can't be built here; None if it can, or needs not."""
    program = {**PROGRAMS, "gcs": GCS}.get(store)
    return program.install() if program else None


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted([*CALLS, *PROGRAMS]), default=list(CALLS))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    parser.add_argument(
        "--kills", type=int, default=100, help="kills of the server, and of the writer, on stores with a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects those kills")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="working folder; emptied first")
    return parser.parse_args(arguments)
