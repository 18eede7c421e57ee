"""The list of all components of a release (SBOM), as CycloneDX 1.5 in JSON, as uv writes it from its lock."""

import json
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.distributions import SOURCES, call, locked


def write(uv: str, file: Path) -> None:
    """Write the list of our distributions and of everything that they ask for, with extras. Raises CommandFailed."""
    options = ("--quiet", "--preview-features", "sbom-export", "--locked", "--all-packages", "--all-extras", "--no-dev")
    call(uv, "export", "--format", "cyclonedx1.5", *options, "--output-file", file)


def faults(uv: str, file: Path) -> Iterator[str]:
    """What the list lacks. Raises CommandFailed."""
    document = json.loads(file.read_text(encoding="utf-8"))
    if (document.get("bomFormat"), document.get("specVersion")) != ("CycloneDX", "1.5"):
        yield f"{file} is not CycloneDX 1.5"
    components = [*document.get("components", []), document.get("metadata", {}).get("component", {})]
    found = {component.get("name") for component in components}
    needed = {Requirement(line).name for line in locked(uv, "--no-dev").splitlines()}
    for name in sorted({*needed, *(each.replace("_", "-") for each in SOURCES)} - found):
        yield f"{file} lacks {name}"
