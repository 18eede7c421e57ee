"""What is wrong with built files: metadata, licenses, and files that are missing or do not belong there.

Each function yields one sentence per fault.
"""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.distributions import PACKAGES, SOURCES, call, metadata_of, sdist_of, wheel_of
from tests.support.pages import ROOT

LICENSE = "Apache-2.0"

CLASSIFIERS = frozenset({"Operating System :: POSIX", "Programming Language :: Python :: 3", "Typing :: Typed"})
"""What every distribution has. The license is no classifier: an expression has replaced it (PEP 639)."""

PYTHON = ">=3.10"

_SUFFIXES = {".py", ".pyi", ".pyc", ".typed", ".html", ".css", ".proto"}


def faults(folder: Path) -> Iterator[str]:
    """All of the below, for every distribution in ``folder``."""
    yield from of_index(folder)
    yield from of_sources()
    versions = {metadata_of(name, folder)["Version"] for name in SOURCES}
    if len(versions) > 1:
        yield f"the distributions have the versions {sorted(versions)}, and are released under one"
    for name in SOURCES:
        yield from of_wheel(name, folder)
        yield from of_sdist(name, folder)
        yield from of_metadata(name, folder)
        yield from of_requirements(name, folder)


def of_sources() -> Iterator[str]:
    """Files that are built in and that no commit has. Raises CommandFailed."""
    packages = [SOURCES[name] / PACKAGES[name] for name in SOURCES]
    for file in call("git", "ls-files", "--others", "--exclude-standard", "--", *packages).splitlines():
        yield f"{file} is not in git, and is built in"


def of_index(folder: Path) -> Iterator[str]:
    """What an index of packages would refuse or not render."""
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(files) != 2 * len(SOURCES):
        yield f"{len(files)} files were built, not a wheel and an sdist of each of {len(SOURCES)} distributions"
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    checked = subprocess.run([*check, *map(str, files)], capture_output=True, text=True, check=False)
    if checked.returncode:
        yield f"twine check --strict: {(checked.stdout + checked.stderr).strip()}"


def of_wheel(name: str, folder: Path) -> Iterator[str]:
    """The wheel has the package with its types and the license, and nothing else."""
    package = SOURCES[name] / PACKAGES[name]
    sources = {file.relative_to(SOURCES[name]) for file in package.rglob("*") if file.is_file()}
    expected = {str(file) for file in sources if "__pycache__" not in file.parts}
    if f"{PACKAGES[name]}/py.typed" not in expected:
        yield f"{name}: the package has no py.typed"
    for file in sorted(sources):
        if file.suffix not in _SUFFIXES or file.name.startswith("test_"):
            yield f"{name}: {file} does not belong into a package"
    with zipfile.ZipFile(wheel_of(name, folder)) as wheel:
        found = {*wheel.namelist()}
        info = next(each.split("/")[0] for each in found if ".dist-info/" in each)
        license_ = f"{info}/licenses/LICENSE"
        expected |= {f"{info}/{each}" for each in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")} | {license_}
        yield from (f"{name}: the wheel lacks {file}" for file in sorted(expected - found))
        yield from (f"{name}: {file} does not belong into the wheel" for file in sorted(found - expected))
        if license_ in found and wheel.read(license_) != _license():
            yield f"{name}: the license in the wheel is not the project's"


def _license() -> bytes:
    return (ROOT / "LICENSE").read_bytes()


def of_sdist(name: str, folder: Path) -> Iterator[str]:
    """The sdist has what its wheel is built from."""
    expected = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", PACKAGES[name]}
    with tarfile.open(sdist_of(name, folder)) as archive:
        top = {member.name.split("/")[1]: member for member in archive.getmembers()}
        if {*top} != expected:
            yield f"{name}: the sdist has {sorted(top)}, not {sorted(expected)}"
        license_ = archive.extractfile(top["LICENSE"]) if "LICENSE" in top else None
        if license_ is not None and license_.read() != _license():
            yield f"{name}: the license in the sdist is not the project's"


def of_metadata(name: str, folder: Path) -> Iterator[str]:
    """The metadata names the license, the required classifiers, and the README that an index shows."""
    metadata = metadata_of(name, folder)
    if metadata["License-Expression"] != LICENSE or metadata.get_all("License-File") != ["LICENSE"]:
        yield f"{name}: the metadata does not name {LICENSE} and its file LICENSE"
    if metadata["Requires-Python"] != PYTHON:
        yield f"{name}: the metadata asks for Python {metadata['Requires-Python']}, not {PYTHON}"
    classifiers = {*metadata.get_all("Classifier", [])}
    for missing in sorted(CLASSIFIERS - classifiers):
        yield f"{name}: the classifier {missing!r} is missing"
    if not any(each.startswith("Development Status ::") for each in classifiers):
        yield f"{name}: no classifier tells the development status"
    for wrong in sorted(each for each in classifiers if each.startswith("License ::")):
        yield f"{name}: the classifier {wrong!r} is superseded by the license expression"
    readme = (SOURCES[name] / "README.md").read_text(encoding="utf-8")
    if metadata["Description-Content-Type"] != "text/markdown" or metadata.get_payload() != readme:
        yield f"{name}: the description is not the README as Markdown"


def of_requirements(name: str, folder: Path) -> Iterator[str]:
    """Every requirement has a least version, and one of ours has exactly the minor version of this distribution."""
    metadata = metadata_of(name, folder)
    major, minor, *_ = Version(metadata["Version"]).release
    for needed in map(Requirement, metadata.get_all("Requires-Dist", [])):
        if needed.name == metadata["Name"]:  # its own extras
            continue
        if needed.name.replace("-", "_") in SOURCES:
            if {*str(needed.specifier).split(",")} != {f">={major}.{minor}", f"<{major}.{minor + 1}"}:
                yield f"{name}: {needed} does not ask for the minor version {major}.{minor} alone"
        elif not any(each.operator in (">=", "==", "~=") for each in needed.specifier):
            yield f"{name}: {needed} has no least version"


def differences(built: Path, again: Path) -> Iterator[str]:
    """Wheels that are not the same, byte for byte, in two folders."""
    for name in SOURCES:
        if wheel_of(name, built).read_bytes() != wheel_of(name, again).read_bytes():
            yield f"{name}: the wheel built from the sdist differs from the one built from the source"
