"""The Python on all pages: it compiles, what it imports of ours is there, and the options of its sinks are accepted."""

from __future__ import annotations

import ast
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import twopc
from tests.pages import PAGES, ROOT, blocks

OF_THE_GUIDE = "twopc_sqlite"
"""Installed and run by a test of its own."""

EXAMPLES = [(page.relative_to(ROOT).as_posix(), text) for page in PAGES for text in blocks(page, "python")]


@pytest.mark.parametrize(("page", "text"), EXAMPLES)
def test_an_example_fits_the_code(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for node in ast.walk(ast.parse(textwrap.dedent(text), page)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("twopc") and module != OF_THE_GUIDE:
                assert all(hasattr(import_module(module), name.name) for name in node.names)
            case ast.Call(
                func=ast.Attribute(attr="create_sink"), args=[ast.Constant(value=str(backend)), ast.Dict() as given]
            ):
                if f"twopc_{backend}" != OF_THE_GUIDE:
                    twopc.create_sink(backend, _options(given))


def _options(given: ast.Dict) -> dict[str, Any]:
    """Literals; and for a name, something that could be there."""
    pairs = zip(given.keys, given.values, strict=True)
    return {ast.literal_eval(key): _value(value) for key, value in pairs if key}


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return "broker:9092"
