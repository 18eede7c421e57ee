"""The modules of the distributions, each parsed once per process. The tests that read them run on one worker."""

import ast
from functools import cache

from tests.support.pages import ROOT

GROUP = "sources"
"""The ``xdist_group`` of tests that parse every module."""

SOURCES = {
    ".".join(source.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): source
    for root in (ROOT, *(ROOT / "plugins").iterdir())
    for package in root.glob("twopc*")
    for source in package.rglob("*.py")
}
"""Module name → source file, for every module of every distribution."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Return every node of a module's tree. Cached, since walking a tree takes as long as parsing it."""
    return tuple(ast.walk(tree(module)))
