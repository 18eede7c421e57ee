"""``make prove-tables``: kill a query into Iceberg and Delta at every step and amid commits, and its servers.

See ``docs/internals/storm.md``.
"""

import argparse
import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.campaigns.every_step.campaign import Proof, Workers, prove, prove_by_blows, run_all, skipped
from tests.campaigns.report import Report
from tests.campaigns.stores.go_servers import PROGRAMS
from tests.campaigns.stores.places import warm_up
from tests.campaigns.tables import together
from tests.campaigns.tables.contents import COUNTED
from tests.campaigns.tables.places import KINDS, ON_CATALOG, S3_SERVER, WITH_S3, TablePlaces
from tests.support import networks
from tests.support.rest_catalog import RestCatalogServer
from tests.support.s3_server import S3Server

EVERY = (*KINDS, together.NAME)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    given = parsed_arguments(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    folder = given.folder.resolve()
    with ExitStack() as stack:
        catalog, s3 = None, None
        on_catalog = not ON_CATALOG.keys().isdisjoint(given.tables)
        why_no_catalog = networks.why_not() if on_catalog else None
        if given.steps_stride and on_catalog and not why_no_catalog:
            catalog = stack.enter_context(RestCatalogServer(folder / "catalog")).host
        if given.steps_stride and {*WITH_S3} & {*given.tables}:
            s3 = stack.enter_context(S3Server(folder / "s3.log")).storage_options

        def proofs(kind: str) -> dict[str, Proof]:
            if kind == together.NAME:
                rounds = math.ceil(given.kills / len(together.STEPS))
                return {kind: partial(together.prove, folder / kind, rounds)} if rounds else {}
            if kind in ON_CATALOG and why_no_catalog:
                return {kind: lambda _: skipped(why_no_catalog)}
            places = TablePlaces(kind, folder / "work", catalog, s3, given.s3_server)
            found: dict[str, Proof] = {}
            if given.steps_stride:
                found[kind] = partial(prove, places, given.steps_stride)
            if given.kills:
                found[f"{kind}, amid commits"] = amid_commits(places)
            return found

        def amid_commits(places: TablePlaces) -> Proof:
            if places.name in WITH_S3 and (obstacle := PROGRAMS[given.s3_server].install()):
                return lambda _: skipped(obstacle)
            return partial(prove_by_blows, places, given.kills, given.seed)

        every = {name: proof for kind in given.tables for name, proof in proofs(kind).items()}
        return run_all(Report(folder / "report.json"), every, Workers(given.processes, COUNTED))


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns tables", description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment; 0: at none")
    parser.add_argument(
        "--kills", type=int, default=20, help="kills amid commits, of the writer and of the server each; 0: none"
    )
    parser.add_argument("--s3-server", choices=list(PROGRAMS), default=S3_SERVER, help="the S3 server that is killed")
    parser.add_argument("--seed", type=int, default=1, help="selects the kills amid commits")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/tables"), help="working folder; emptied first")
    return parser.parse_args(arguments)
