"""Each wheel, installed alone into an environment that has nothing else."""

import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.distributions import PACKAGES, CommandFailed, call, locked, wheel_of

_IMPORTED = """
import importlib, importlib.metadata, json, pathlib, sys
try:
    package = importlib.import_module(sys.argv[2])
except Exception as error:
    sys.exit(f"{sys.argv[2]} can't be imported: {error!r}")
for entry_point in importlib.metadata.distribution(sys.argv[1]).entry_points:
    try:
        entry_point.load()
    except Exception as error:
        sys.exit(f"its entry point {entry_point.name!r} in {entry_point.group!r} can't be loaded: {error!r}")
if not pathlib.Path(package.__file__).is_relative_to(sys.prefix):
    sys.exit(f"{package.__file__} is not from the wheel")
named = (each for each in importlib.metadata.distributions() if each.name.startswith("twopc"))
print(json.dumps({each.name: json.loads(each.read_text("direct_url.json") or '{"url": ""}')["url"] for each in named}))
"""


class Installer:
    """Installs wheels of ``built`` with locked versions of third parties.

    Args:
        uv: the uv to use.
        built: the folder with the wheels.
        folder: an empty one, for the environments.
    """

    def __init__(self, uv: str, built: Path, folder: Path) -> None:
        self._uv, self._built, self._folder = uv, built, folder

    @functools.cached_property
    def _constraints(self) -> Path:
        """The locked versions of third parties, and our own wheels."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ours = [f"{name.replace('_', '-')} @ {wheel_of(name, self._built).as_uri()}\n" for name in PACKAGES]
        file = self._folder / "constraints.txt"
        file.write_text(locked(self._uv) + "".join(ours), encoding="utf-8")
        return file

    def faults(self, name: str) -> Iterator[str]:
        """What is wrong with a distribution that is installed alone."""
        try:
            environment = self._installed(name)
            found = json.loads(self._python(environment, "-c", _IMPORTED, name, PACKAGES[name]))
            self._pip("check", environment)
            if name == "twopc_core":
                yield from self._command_faults(environment)
        except CommandFailed as failed:
            yield f"{name}, installed alone: {failed}"
            return
        for each, url in found.items():
            if not url.startswith(self._built.as_uri()):
                yield f"{name}, installed alone, took {each} from {url or 'an index'} and not from {self._built}"

    def _command_faults(self, environment: Path) -> Iterator[str]:
        """The command names its extra where that is missing, and tells its version where it is there."""
        command = environment / "bin" / "twopc"
        try:
            call(command, "--version", folder=self._folder)
        except CommandFailed as failed:
            if "pip install 'twopc-core[cli]'" not in str(failed):
                yield f"'twopc --version' without the extra cli does not name it: {failed}"
        else:
            yield "'twopc --version' runs without the extra cli"
        self._install(environment, "twopc_core", "[cli]")
        version = wheel_of("twopc_core", self._built).name.split("-")[1]
        told = call(command, "--version", folder=self._folder).strip()
        if told != f"twopc, version {version}":
            yield f"'twopc --version' prints {told!r}, and the wheel has version {version}"

    def _installed(self, name: str) -> Path:
        environment = self._folder / name
        call(self._uv, "venv", "--quiet", "--python", sys.executable, environment)
        self._install(environment, name)
        return environment

    def _install(self, environment: Path, name: str, extra: str = "") -> None:
        wheel = f"{name.replace('_', '-')}{extra} @ {wheel_of(name, self._built).as_uri()}"
        self._pip("install", environment, "--constraint", self._constraints, wheel)

    def _pip(self, command: str, environment: Path, *options: object) -> None:
        python: Sequence[object] = ("--python", environment / "bin" / "python")
        call(self._uv, "pip", command, "--quiet", *python, *options, folder=self._folder)

    def _python(self, environment: Path, *arguments: object) -> str:
        return call(environment / "bin" / "python", *arguments, folder=self._folder)
