"""Changes a cluster's ``transaction.version``, as ``kafka-features.sh`` does.

``python -m tests.campaigns.jepsen.transaction_version SERVERS VERSION`` repeats that until the cluster has the version.
"""

import sys
import time
from typing import Any

from kafka.protocol.admin import UpdateFeaturesRequest

from twopc.errors import TwoPhaseCommitError
from twopc_kafka.client.control import Control, control_of

UPGRADE, UNSAFE_DOWNGRADE = 1, 3


def request(control: Control, version: int, *, raises: bool) -> int:
    """Ask for a version once. Return the error code."""
    key = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version",
        max_version_level=version,
        upgrade_type=UPGRADE if raises else UNSAFE_DOWNGRADE,
        allow_downgrade=not raises,
    )

    async def update() -> Any:
        return await control.send(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[key]))

    code: int = control.run(update).error_code
    return code


def main() -> None:
    servers, version = sys.argv[1].split(","), int(sys.argv[2])
    control = control_of({"bootstrap_servers": servers})
    while True:
        try:
            if (now := control.transaction_version) == version:
                return
            print(f"from {now} to {version}: {request(control, version, raises=version > now)}", flush=True)
        except TwoPhaseCommitError as error:
            print(error, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
