"""The wall clocks of hosts, which can be stepped. ``clock.c`` is loaded into each process of a host."""

import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


def why_not() -> str | None:
    """Return why clocks can't be stepped here, or None if they can."""
    return None if shutil.which("cc") else "stepped clocks need a C compiler: install gcc"


class Clocks:
    """One clock per host, all right at first. Faults overlap, so steps of a clock are added up.

    Args:
        folder: where the compiled library and the offsets are kept. The class creates it.

    Raises:
        CalledProcessError: the library does not compile.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self._library = folder, folder / "clock.so"
        self._offsets = Counter[str]()
        compiler = [shutil.which("cc") or "cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE)]
        subprocess.run([*compiler, "-ldl", "-lpthread"], check=True)

    def environment(self, host: str) -> Mapping[str, str]:
        """Return the variables with which a process goes by the clock of a host."""
        self.step(host, 0)
        return {"LD_PRELOAD": str(self._library), "TWOPC_CLOCK": str(self._folder / host)}

    def step(self, host: str, seconds: int) -> None:
        """Step the clock of a host: forward, or back if ``seconds`` are negative."""
        self._offsets[host] += seconds
        path = self._folder / host
        with path.open("r+b" if path.exists() else "wb") as file:  # in place: processes have mapped it
            file.write(struct.pack("=q", self._offsets[host]))
