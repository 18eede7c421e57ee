"""The licenses of everything that the distributions ask for, with their extras, as the installed metadata has them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution as Installed
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

from tests.support.distributions import locked

NAMED = {
    "certifi": "MPL-2.0, which asks for its own files to stay open; a list of certificates",
    "orjson": "MPL-2.0 AND (Apache-2.0 OR MIT); used unchanged",
    "psycopg": "LGPL-3.0, which leaves free what imports an unchanged library",
    "psycopg-binary": "LGPL-3.0, as psycopg",
    "psycopg2-binary": "LGPL with exceptions, as psycopg; only the extra 'postgres' of twopc-iceberg brings it",
}
"""Package → its license, and why that is no obstacle although it is not permissive. The report names each."""

_PERMISSIVE = re.compile(
    r"(0BSD|3-Clause BSD|Apache|BSD|CC0|ISC|MIT|PSF|Python Software Foundation|Unlicense|Zlib)\b", re.IGNORECASE
)
"""The start of the names of permissive licenses, as SPDX and the classifiers have them."""

_SHORT = 100  # characters: a longer field ``License`` is the license's text
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Licensed:
    """A dependency and its license.

    Attributes:
        license: as its metadata has it.
        is_permissive: whether anyone may use it for anything, if its notice is kept.
    """

    name: str
    version: str
    license: str
    is_permissive: bool


def table(uv: str) -> tuple[list[Licensed], list[str]]:
    """Return the dependencies of this platform, and the requirements of other platforms, which are not installed here.
    Raises CommandFailed."""
    found, elsewhere = [], []
    for line in locked(uv, "--no-dev").splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            found.append(_looked_up(requirement.name))
        else:
            elsewhere.append(line)
    return found, elsewhere


def faults(found: Iterable[Licensed]) -> Iterator[str]:
    """Dependencies whose license is not permissive and not named in ``NAMED``; and names there that nobody needs."""
    others = {each.name: each.license for each in found if not each.is_permissive}
    for name in sorted(others.keys() - NAMED.keys()):
        yield f"the license of {name} is {others[name]}, which is not known as permissive: look, and name it in NAMED"
    for name in sorted(NAMED.keys() - others.keys()):
        yield f"{name} is named in NAMED, and no dependency of that name has a license that is not permissive"


def _looked_up(name: str) -> Licensed:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return Licensed(name, "not installed", _UNKNOWN, is_permissive=False)
    license_ = license_of(installed)
    return Licensed(name, installed.version, license_, is_permissive(license_))


def license_of(installed: Installed) -> str:
    """Return the license by the most exact field that the metadata has."""
    metadata = installed.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier", []) if each.startswith("License")]
    named = [each for each in classifiers if each != "OSI Approved"]
    field = " ".join(metadata["License"].split()) if "License" in metadata else ""
    return " AND ".join(named) or (field if 0 < len(field) <= _SHORT else _UNKNOWN)


def is_permissive(license_: str) -> bool:
    """Whether all parts of an expression, of which an OR needs one, are permissive."""
    parts = re.split(r"\bAND\b", license_.replace("(", " ").replace(")", " "))
    return all(any(_PERMISSIVE.match(each.strip()) for each in re.split(r"\bOR\b", part)) for part in parts)
