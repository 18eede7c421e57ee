"""The Python code on all pages compiles, imports names that exist, and passes options that its sinks accept."""

import ast
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import twopc
from tests.support.pages import PAGES, ROOT, blocks, write_files

OF_THE_GUIDE = "twopc_sqlite"
"""Installed and run by a test of its own."""

EXAMPLES = [(page.relative_to(ROOT).as_posix(), text) for page in PAGES for text in blocks(page, "python")]


def test_an_example_fits_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trees = [(page, ast.parse(textwrap.dedent(text), page)) for page, text in EXAMPLES]
    for page, node in [(page, node) for page, tree in trees for node in ast.walk(tree)]:
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("twopc") and module != OF_THE_GUIDE:
                assert all(hasattr(import_module(module), name.name) for name in node.names), page
            case ast.Call(
                func=ast.Attribute(attr="create_sink"), args=[ast.Constant(value=str(backend)), ast.Dict() as given]
            ):
                if f"twopc_{backend}" != OF_THE_GUIDE:
                    twopc.create_sink(backend, _options(given))


KILLED_AT_A_COMMIT = """
import os, sys
import twopc_files.sink

twopc_files.sink.FileSink.commit = lambda sink, committable: os._exit(9)
exec(sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.crash
def test_the_loop_without_spark_continues_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = [text for page, text in EXAMPLES if page == "docs/other-ways.md" and "phase_one" in text]
    monkeypatch.chdir(tmp_path)
    first, *_ = loops = [text.replace("\nwith ", f"\ndel batches[{end}:]\nwith ", 1) for end in (1, 2, 3, 3)]
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_A_COMMIT, first], check=False)
    assert killed.returncode == 9
    assert not [*(tmp_path / "loop-orders").glob("*.parquet")]

    # The first run finds no batch to write but one to commit; the last one finds nothing.
    for loop, records in zip(loops, (1, 2, 3, 3), strict=True):
        exec(loop, {})  # noqa: S102  # ours
        assert sorted(pq.read_table(tmp_path / "loop-orders")["id"].to_pylist()) == list(range(records))


def test_the_loop_without_spark_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = ROOT / "docs" / "other-ways.md"
    [shown] = blocks(page, "console")
    write_files(page, tmp_path)
    for command, _, expected in (step.partition("\n") for step in shown.split("$ ")[1:]):
        program, *arguments = command.split()
        assert program == "python"
        ran = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert ran.stdout == expected


def _options(given: ast.Dict) -> dict[str, Any]:
    """Literals; and for a name, something that could be there."""
    pairs = zip(given.keys, given.values, strict=True)
    return {ast.literal_eval(key): _value(value) for key, value in pairs if key}


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return "broker"
