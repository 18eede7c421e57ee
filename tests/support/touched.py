"""Print the test files that a change affects: those that import a changed module, directly or through other modules.

``python -m tests.support.touched REVISION`` compares the working tree with a revision, or with the branch's merge base
with ``main`` if REVISION is ``1``. Backends that are only named, as in ``create_sink("kafka", ...)``, are not detected.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support.pages import ROOT

Graph = Mapping[str, set[str]]

ALL = ["tests"]


def main(revision: str) -> list[str]:
    """Return arguments for pytest."""
    changed = [Path(name) for name in _changed(_git("merge-base", "main", "HEAD")[0] if revision == "1" else revision)]
    if any(path.suffix in (".toml", ".lock") or path == Path("tests/conftest.py") for path in changed):
        return ALL
    tests = {str(path) for path in touched(modules(), changed) if path.name.startswith("test_")}
    if any(path.suffix == ".md" for path in changed):
        tests.add("tests/docs")
    return sorted(tests) or ["--collect-only", "-q", "tests/docs"]


def touched(found: Mapping[str, Path], changed: Iterable[Path]) -> set[Path]:
    """Return the changed modules, and all modules that import them."""
    importers: dict[str, set[str]] = {}
    for name, path in found.items():
        for imported in {*_imported(path), *_conftests(path)} & found.keys():
            importers.setdefault(imported, set()).add(name)
    names = {path: name for name, path in found.items()}
    left, seen = [names[path] for path in changed if path in names], set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += importers.get(name, ())
    return {found[name] for name in seen}


def modules() -> dict[str, Path]:
    """Return module name → path relative to the project's folder."""
    return named(map(Path, _git("ls-files", "--cached", "--others", "--exclude-standard", "*.py")))


def named(paths: Iterable[Path]) -> dict[str, Path]:
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    below = parts[2:] if parts[0] == "plugins" else parts
    return ".".join(below[:-1] if below[-1] == "__init__" else below)


@cache
def _imported(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{each.name}" for each in node.names)))
    return frozenset(found)


def _conftests(path: Path) -> Iterator[str]:
    """Yield the conftest modules of a test's folders. Excludes the top-level one, which imports every backend and would
    select all tests."""
    folder = path.parent
    while path.parts[0] == "tests" and folder != Path("tests"):
        yield _name(folder / "conftest.py")
        folder = folder.parent


def _changed(revision: str) -> list[str]:
    return _git("diff", "--name-only", revision) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.stdout.write(" ".join(main(*sys.argv[1:])))
