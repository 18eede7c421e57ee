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
from tests.campaigns.stores.places import CALLS, COUNTED, STAGING, StorePlaces, warm_up
from tests.support.azurite_server import AzuriteServer, install
from tests.support.s3_server import S3Server

INSTALLED = {
    **{store: program.install for store, program in PROGRAMS.items()},
    **dict.fromkeys(STAGING, install),
}
"""Stores whose server is installed first. Each function returns the reason if that is impossible."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    given = parsed_arguments(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    with ExitStack() as stack:
        server = S3Server(given.folder / "s3.log")
        if {"s3", "copy"} & set(given.stores):
            stack.enter_context(server)
        azurite = AzuriteServer((given.folder / "azurite").resolve())
        if "azure" in given.stores and INSTALLED["azure"]() is None:
            stack.enter_context(azurite)

        def proof(store: str) -> Proof:
            options = azurite.storage_options if store == "azure" else server.storage_options
            places = StorePlaces(store, given.folder.resolve() / "work", options)
            if store in INSTALLED and (obstacle := INSTALLED[store]()):
                return lambda _: skipped(obstacle)
            if store in CALLS:
                return partial(prove, places, given.steps_stride)
            return partial(prove_by_blows, places, given.kills, given.seed)

        proofs = {store: proof(store) for store in given.stores}
        return run_all(Report(given.folder / "report.json"), proofs, Workers(given.processes, COUNTED))


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted([*CALLS, *PROGRAMS, "azurite"]), default=list(CALLS))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    parser.add_argument(
        "--kills", type=int, default=100, help="kills of the server, and of the writer, on stores with a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects those kills")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="working folder; emptied first")
    return parser.parse_args(arguments)
