"""``make prove-stores``: kill a writer of files at every step on every store. See ``docs/internals/stores.md``."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.campaigns.every_step.campaign import Proof, parser, prove, prove_by_blows, run_all, skipped
from tests.campaigns.stores.kinds import AT_EVERY_STEP, KINDS
from tests.campaigns.stores.places import COUNTED, StorePlaces, warm_up


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    accepted = parser("stores", __doc__, kills=100)
    accepted.add_argument("--stores", nargs="+", choices=sorted(KINDS), default=list(AT_EVERY_STEP))
    given = accepted.parse_args(arguments)
    warm_up()

    def proof(store: str, folder: Path, servers: ExitStack) -> Proof:
        kind, work, options = KINDS[store], folder / "work", {}
        if obstacle := kind.obstacle():
            return skipped(obstacle)
        if kind.watch:
            return partial(prove_by_blows, StorePlaces(store, work, {}), given.kills, given.seed)
        if kind.server:
            (folder / store).mkdir()
            options = servers.enter_context(kind.server(folder / store)).storage_options
        return partial(prove, StorePlaces(store, work, options), given.steps_stride)

    def proofs(folder: Path, servers: ExitStack) -> Mapping[str, Proof]:
        return {store: proof(store, folder, servers) for store in given.stores}

    return run_all(given, proofs, COUNTED)
