"""Fills the tables of options on the reference pages in from the code: ``python docs/site/reference.py``.

The text between ``<!-- twopc.spark.foreach_batch -->`` and ``<!-- end -->`` is a table of the arguments of that
function or class, of the options in a tuple of ``twopc.options.Option``, or of the options of a command such as
``twopc.cli.commands.status``. A test compares the pages with the code.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe

from twopc.options import Option, table, text

PAGES = tuple(Path(__file__).parents[1] / name for name in ("configuration.md", "cli.md"))

_BLOCK = re.compile(r"^<!-- ([\w.]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(page: str) -> str:
    """Return the page with its tables as the code has them."""
    return _BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n\n{described(found[1])}\n\n<!-- end -->", page)


def described(path: str) -> str:
    """Return the table of a name of the code."""
    module, _, name = path.rpartition(".")
    named = getattr(importlib.import_module(module), name)
    if isinstance(named, click.Command):
        return table([_option(each) for each in named.params if isinstance(each, click.Option)])
    if callable(named):
        return table(_arguments(f"{named.__module__}.{named.__qualname__}"))
    if all(isinstance(option, Option) for option in named):
        return table(named)
    return ", ".join(f"`{text}`" for text in sorted(named)) + "."


@functools.cache  # it takes a second
def _package(name: str) -> Any:
    return griffe.load(name)


def _arguments(path: str) -> Iterator[Option]:
    package, _, name = path.partition(".")
    docstring = _package(package)[name].docstring
    assert docstring is not None
    for section in docstring.parse("google"):
        if section.kind is griffe.DocstringSectionKind.parameters:
            for argument in section.value:
                default = f"`{argument.default}`" if argument.default not in (None, "{}") else ""  # {}: of **options
                annotation = str(argument.annotation).replace(" | ", " or ")  # a bar would end the cell
                yield Option(
                    argument.name,
                    text(values=f"`{annotation}`"),
                    " ".join(argument.description.split()).replace("``", "`"),
                    default_text=default,
                )


def _option(option: click.Option) -> Option:
    values = "" if option.is_flag else str(option.metavar)
    default = f"{option.default:g}" if isinstance(option.default, float) else ""
    return Option(
        ", ".join(option.opts), text(values=values), str(option.help), default_text=default, needed=option.required
    )


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(filled(each.read_text(encoding="utf-8")), encoding="utf-8")
