"""Every test that kills a process has the mark ``crash``."""

import ast
import re
from collections.abc import Iterator

from tests.support.pages import ROOT

METHODS = ("kill", "killpg")
OF_THE_KIT = ("kill_all_of", "kill_each", "kill_this_process", "run_killed", "killed_writer")

_MAY_KILL = re.compile(rf"kill(pg)?\(|SIGKILL|os\._exit|{'|'.join(OF_THE_KIT)}")
_PROGRAM = re.compile(r"SIGKILL|os\._exit\([1-9]")
"""In the text of a program that kills itself."""


def test_a_test_that_kills_a_process_has_the_mark() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if not _MAY_KILL.search(text):
            continue
        module = ast.parse(text)
        if any(isinstance(node, ast.Assign) and _names_mark(node) for node in module.body):
            continue
        one_has_it = _names_mark(module)
        for part in module.body:
            is_test = isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
            # A helper, or the text of a program, is run by some test of the file.
            has_it = _names_mark(part) if is_test else one_has_it
            lines = [getattr(node, "lineno", 0) for node in _outside_cleanup(part) if _kills(node)]
            assert has_it or not lines, f"{file}:{lines} kills a process, and the test has no mark 'crash'"


def _outside_cleanup(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, but for what a ``finally`` does to end processes that a test has started."""
    found = [node]
    while found:
        above = found.pop()
        below = [each for each in ast.iter_child_nodes(above) if each not in getattr(above, "finalbody", ())]
        yield from below
        found += below


def _kills(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in METHODS
        case ast.Call(func=ast.Name(id=name)):
            return name in OF_THE_KIT
        case ast.Attribute(attr="SIGKILL"):
            return True
        case ast.Constant(value=str(text)):
            return "\n" in text.strip() and bool(_PROGRAM.search(text))
        case _:
            return False


def _names_mark(node: ast.AST) -> bool:
    return any(isinstance(below, ast.Attribute) and below.attr == "crash" for below in ast.walk(node))
