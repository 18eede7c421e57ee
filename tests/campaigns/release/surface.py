"""What users may rely on, now and in the last release: names, signatures, options, metrics (``docs/versions.md``)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from tests.support.distributions import CommandFailed, call
from tests.support.pages import ROOT
from tests.unit import public_surface

PINNED = "tests/unit/public_surface.txt"

POLICY = "docs/versions.md"


@dataclass(frozen=True, slots=True)
class Changes:
    """Lines of the surface.

    Attributes:
        since: what it is compared with: a tag of git, or ``HEAD`` where there is none.
        removed: names that are gone.
        changed: names with another signature, base or default, before and after.
        added: names that are new.
    """

    since: str
    removed: Sequence[str]
    changed: Sequence[tuple[str, str]]
    added: Sequence[str]


def last_tag() -> str | None:
    """Return the newest tag of a version that the checked out commit contains, or None if it contains none."""
    try:
        return call("git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").strip()
    except CommandFailed:
        return None


def require_tags(folder: Path = ROOT) -> Iterator[str]:
    """Say so if the clone in ``folder`` may lack tags, as CI's clones do: no release would be compared with another."""
    if call("git", "rev-parse", "--is-shallow-repository", folder=folder).strip() == "true":
        yield "this clone is shallow and has no tag of a version: run 'git fetch --unshallow --tags'"


def since(tag: str | None) -> Changes:
    """Compare the surface of the code with the one of ``tag``, or with the committed one. Raises CommandFailed."""
    revision = tag or "HEAD"
    return compared(revision, call("git", "show", f"{revision}:{PINNED}").splitlines(), list(public_surface.lines()))


def compared(revision: str, before: Sequence[str], after: Sequence[str]) -> Changes:
    """Compare two surfaces, name by name."""
    old, new = ({_name(line): line for line in lines} for lines in (before, after))
    return Changes(
        revision,
        [old[name] for name in old if name not in new],
        [(old[name], new[name]) for name in old if name in new and old[name] != new[name]],
        [new[name] for name in new if name not in old],
    )


def faults(changes: Changes, tag: str | None, version: str) -> Iterator[str]:
    """Changes that a release of this version must not make; without a tag, any change to the committed file."""
    last = None if tag is None else Version(tag)
    new = Version(version)
    if last is not None and new < last:
        yield f"the version is {new}, and {last} is released already"
    is_minor = last is not None and new.release[:2] > last.release[:2]
    is_major = is_minor and last is not None and (new.major > last.major or last.major == 0)
    if not is_major:
        yield from (_forbidden("is gone", line, changes, "major") for line in changes.removed)
    if not is_minor:
        yield from (_forbidden(f"is now: {now}", line, changes, "minor") for line, now in changes.changed)
        yield from (_forbidden("is new", line, changes, "minor") for line in changes.added)


def _forbidden(what: str, line: str, changes: Changes, kind: str) -> str:
    if changes.since == "HEAD":
        return f"{line!r} {what}, unlike in the committed {PINNED}: see {POLICY}"
    return f"{line!r} {what} since {changes.since}, which takes a {kind} release: see {POLICY}"


def _name(line: str) -> str:
    return re.split(r"[(:]", line, maxsplit=1)[0]
