"""A hook of MkDocs: generates the tables of options on the reference pages, from the code.

A line ``<!-- twopc.spark.foreach_batch -->`` becomes a table of the arguments of that function or class, of the options
in a tuple of ``twopc.options.Option``, or of the options of a command such as ``twopc.cli.commands.status``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from twopc.options import Option, table, text

PAGES = ("docs/configuration.md", "docs/cli.md")

_NAMED = re.compile(r"^<!-- ([\w.]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # MkDocs'
    """Return the page as MkDocs renders it."""
    if page.file.src_uri not in PAGES:
        return markdown
    return _NAMED.sub(lambda found: described(found[1]), markdown)


def described(path: str) -> str:
    """Return what replaces a name of the code."""
    module, _, name = path.rpartition(".")
    named = getattr(importlib.import_module(module), name)
    if isinstance(named, click.Command):
        return table([_option(each) for each in named.params if isinstance(each, click.Option)])
    if callable(named):
        return table(_arguments(f"{named.__module__}.{named.__qualname__}"))
    if all(isinstance(option, Option) for option in named):
        return table(named)
    return ", ".join(f"`{text}`" for text in sorted(named)) + "."


def _arguments(path: str) -> Iterator[Option]:
    docstring = griffe.load(path).docstring
    assert docstring is not None
    for section in docstring.parse("google"):
        if section.kind is griffe.DocstringSectionKind.parameters:
            for argument in section.value:
                default = f"`{argument.default}`" if argument.default not in (None, "{}") else ""  # {}: of **options
                yield Option(
                    argument.name,
                    text(values=f"`{argument.annotation}`"),
                    " ".join(argument.description.split()).replace("``", "`"),
                    default_text=default,
                )


def _option(option: click.Option) -> Option:
    values = "" if option.is_flag else str(option.metavar)
    default = f"{option.default:g}" if isinstance(option.default, float) else ""
    return Option(
        ", ".join(option.opts), text(values=values), str(option.help), default_text=default, needed=option.required
    )
