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
from tests.campaigns.stores.places import CALLS, COUNTED, ON_HDFS, STRUCK_HDFS, StorePlaces, warm_up
from tests.support import hdfs_server
from tests.support.hdfs_server import HdfsServer
from tests.support.s3_server import S3Server

QUICK = tuple(store for store in CALLS if store not in ON_HDFS)
"""Stores that need no Java, and in which a step takes milliseconds."""

KILLED = (*PROGRAMS, STRUCK_HDFS)
"""Stores whose server is killed."""


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
        hdfs = HdfsServer(given.folder.resolve() / "hdfs")
        if "hdfs" in given.stores and not hdfs_server.why_not():
            stack.enter_context(hdfs)

        def proof(store: str) -> Proof:
            if obstacle := _obstacle(store):
                return lambda _: skipped(obstacle)
            options = hdfs.storage_options if store in ON_HDFS else server.storage_options
            places = StorePlaces(store, given.folder.resolve() / "work", options)
            if store in KILLED:
                return partial(prove_by_blows, places, given.kills, given.seed)
            return partial(prove, places, given.steps_stride)

        proofs = {store: proof(store) for store in given.stores}
        return run_all(Report(given.folder / "report.json"), proofs, Workers(given.processes, COUNTED))


def _obstacle(store: str) -> str | None:
    """Return why a store is not possible here, and what to do about it. Build or download its server if need be."""
    if store in PROGRAMS:
        return PROGRAMS[store].install()
    return hdfs_server.why_not() if store in ON_HDFS else None


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted([*CALLS, *KILLED]), default=QUICK)
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    parser.add_argument(
        "--kills", type=int, default=100, help="kills of the server, and of the writer, on stores with a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects those kills")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="working folder; emptied first")
    return parser.parse_args(arguments)
