"""``make prove-tables``: kill a query into Iceberg and Delta at every step and amid commits, and its servers.

See ``docs/internals/storm.md``.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.campaigns.every_step.campaign import Proof, parser, prove, prove_by_blows, run_all, skipped
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
    accepted = parser("tables", f"{__doc__} With 0 for a stride or for kills, there are none of these.", kills=20)
    accepted.add_argument("--tables", nargs="+", choices=EVERY, default=list(EVERY))
    accepted.add_argument("--s3-server", choices=list(PROGRAMS), default=S3_SERVER, help="the S3 server that is killed")
    given = accepted.parse_args(arguments)
    warm_up()

    def proofs(folder: Path, servers: ExitStack) -> Mapping[str, Proof]:
        return dict(_proofs(given, folder, servers))

    return run_all(given, proofs, COUNTED)


def _proofs(given: argparse.Namespace, folder: Path, servers: ExitStack) -> Iterator[tuple[str, Proof]]:
    why_no_catalog = None if ON_CATALOG.keys().isdisjoint(given.tables) else networks.why_not()
    catalog, s3 = None, None
    if given.steps_stride and not (why_no_catalog or ON_CATALOG.keys().isdisjoint(given.tables)):
        catalog = servers.enter_context(RestCatalogServer(folder / "catalog")).host
    if given.steps_stride and not {*WITH_S3}.isdisjoint(given.tables):
        s3 = servers.enter_context(S3Server(folder / "s3.log")).storage_options
    for kind in given.tables:
        places = TablePlaces(kind, folder / "work", catalog, s3, given.s3_server)
        if kind == together.NAME:
            if rounds := math.ceil(given.kills / len(together.STEPS)):
                yield kind, partial(together.prove, folder / kind, rounds)
        elif kind in ON_CATALOG and why_no_catalog:
            yield kind, skipped(why_no_catalog)
        else:
            if given.steps_stride:
                yield kind, partial(prove, places, given.steps_stride)
            if given.kills:
                yield f"{kind}, amid commits", _amid_commits(places, given)


def _amid_commits(places: TablePlaces, given: argparse.Namespace) -> Proof:
    if places.name in WITH_S3 and (obstacle := PROGRAMS[given.s3_server].install()):
        return skipped(obstacle)
    return partial(prove_by_blows, places, given.kills, given.seed)
