"""``make release-check``: build every distribution and check what a release needs. See ``docs/versions.md``."""

import argparse
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.release import contents, licenses, sbom, surface
from tests.campaigns.release.installing import Installer
from tests.campaigns.report import Report
from tests.support.distributions import SOURCES, CommandFailed, build, metadata_of


class Check:
    """The steps of one check, and what they have found.

    Args:
        uv: the uv that builds and installs.
        folder: a new folder for everything that is built, and for the report.
    """

    def __init__(self, uv: str, folder: Path) -> None:
        self._uv, self._folder, self._built = uv, folder, folder / "dist"
        self._installer = Installer(uv, self._built, folder / "alone")
        self.wrong: list[str] = []
        self.found: dict[str, Any] = {}
        self._started_s = time.monotonic()

    def steps(self) -> Iterable[tuple[str, Callable[[], Iterable[str]]]]:
        """Each step with its name. A step returns one sentence for each thing that is wrong."""
        yield "build wheels and sdists", self._build
        yield "look at their metadata, licenses and files", lambda: contents.faults(self._built)
        yield "build the wheels again, from the source", self._build_again
        yield "look up the licenses of dependencies", self._licenses
        yield "compare public names, options and metrics with the last tag", self._surface
        yield from ((f"install {name} alone", partial(self._installer.faults, name)) for name in SOURCES)
        yield "write the list of components (SBOM)", self._sbom

    def take(self, step: str, call: Callable[[], Iterable[str]]) -> None:
        """Take a step. A step that fails is a thing that is wrong, and the next one is taken."""
        print(f"{time.monotonic() - self._started_s:4.0f} s  {step} ...", flush=True)
        try:
            wrong = [*call()]
        except (Exception, CommandFailed) as error:  # noqa: BLE001  # a sentence, not a traceback
            wrong = [f"could not {step}: {error if isinstance(error, CommandFailed) else repr(error)}"]
        for sentence in wrong:
            print(f"        wrong: {sentence}", flush=True)
        self.wrong += wrong

    def _build(self) -> Iterable[str]:
        build(self._uv, self._built, "--all-packages")
        self.found["files"] = sorted(file.name for file in self._built.iterdir() if file.suffix in (".whl", ".gz"))
        return ()

    def _build_again(self) -> Iterable[str]:
        again = self._folder / "again"
        build(self._uv, again, "--all-packages", "--wheel")
        return contents.differences(self._built, again)

    def _licenses(self) -> Iterable[str]:
        table, elsewhere = licenses.table(self._uv)
        others = [each for each in table if not each.is_permissive]
        self.found["licenses"] = [asdict(each) for each in table]
        self.found["not_permissive"] = {each.name: licenses.NAMED.get(each.name, each.license) for each in others}
        self.found["of_other_platforms"] = elsewhere
        width = max(len(each.name) for each in table)
        for each in table:
            print(f"        {each.name:{width}}  {each.version:12}  {each.license}")
        for each in others:
            print(f"        not permissive: {each.name} ({licenses.NAMED.get(each.name, each.license)})")
        return licenses.faults(table)

    def _surface(self) -> Iterable[str]:
        tag = surface.last_tag()
        if tag is None:
            print("        there is no tag of a version yet: compared with the committed file")
            yield from surface.require_tags()
        changes = surface.since(tag)
        self.found["surface"] = asdict(changes)
        yield from surface.faults(changes, tag, self._version)

    @property
    def _version(self) -> str:
        return str(metadata_of("twopc_core", self._built)["Version"])

    def _sbom(self) -> Iterable[str]:
        file = self._folder / "sbom.cdx.json"
        sbom.write(self._uv, file)
        self.found["sbom"] = file.name
        return sbom.faults(self._uv, file)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns release", description=__doc__)
    parser.add_argument("--uv", default="uv", help="the uv that builds and installs")
    parser.add_argument("--folder", type=Path, default=Path("build/release"), help="folder for files and report")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    uv = str(Path(given.uv).resolve()) if "/" in given.uv else given.uv
    check, report = Check(uv, given.folder.resolve()), Report(given.folder / "report.json")
    for step, call in check.steps():
        check.take(step, call)
        report.write({"wrong": check.wrong, **check.found})
    summary = f"{len(SOURCES)} distributions; {len(check.wrong) or 'nothing'} wrong"
    return report.end(summary, failed=bool(check.wrong))
