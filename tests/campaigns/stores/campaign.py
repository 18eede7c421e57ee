"""``make prove-stores``: kill a writer of files at every step on every store. See ``docs/internals/stores.md``."""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.campaigns.every_step.campaign import Proof, Workers, prove, prove_by_blows, run_all, skipped
from tests.campaigns.report import Report
from tests.campaigns.stores.kinds import AT_EVERY_STEP, KINDS
from tests.campaigns.stores.places import COUNTED, StorePlaces, warm_up


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    given = parsed_arguments(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    work = given.folder.resolve() / "work"
    with ExitStack() as servers:

        def proof(store: str) -> Proof:
            kind = KINDS[store]
            if obstacle := kind.obstacle():
                return lambda _: skipped(obstacle)
            if kind.watch:
                return partial(prove_by_blows, StorePlaces(store, work, {}), given.kills, given.seed)
            options = {}
            if kind.server:
                folder = given.folder.resolve() / store
                folder.mkdir()
                options = servers.enter_context(kind.server(folder)).storage_options
            return partial(prove, StorePlaces(store, work, options), given.steps_stride)

        proofs = {store: proof(store) for store in given.stores}
        return run_all(Report(given.folder / "report.json"), proofs, Workers(given.processes, COUNTED))


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted(KINDS), default=list(AT_EVERY_STEP))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    parser.add_argument(
        "--kills", type=int, default=100, help="kills of the server, and of the writer, on stores with a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects those kills")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="working folder; emptied first")
    return parser.parse_args(arguments)
