"""Fills the tables on the reference pages in from the code: ``python docs/site/reference.py``.

The text between ``<!-- twopc.spark.foreach_batch -->`` and ``<!-- end -->`` is a table of the arguments of that
function or class, of the options in a tuple of ``twopc.options.Option``, of the options of a command such as
``twopc.cli.commands.status``, or of metrics. That after ``<!-- names -->`` lists the names for which the page has the
whole docstring (``::: twopc.Coordinator``), as only the site shows it. A test compares the pages with the code.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import griffe
from tables import options_table, table

from twopc.observers._instruments import Instrument
from twopc.options import Option, text

ROOT = Path(__file__).parents[2]

PAGES = tuple(ROOT / "docs" / name for name in ("api.md", "configuration.md", "cli.md", "metrics.md"))

_BLOCK = re.compile(r"^<!-- ([\w.]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)

_NAME = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def filled(page: str) -> str:
    """Return the page with its tables as the code has them."""

    def block(path: str) -> str:
        return "\n".join(map(_name, _NAME.findall(page))) if path == "names" else described(path)

    return _BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n\n{block(found[1])}\n\n<!-- end -->", page)


def described(path: str) -> str:
    """Return the table of a name of the code."""
    module, _, name = path.rpartition(".")
    is_command = module == "twopc.cli.commands"  # each is in a module of its name
    named = getattr(importlib.import_module(path if is_command else module), name)
    if name.startswith("METRICS"):
        rows = ((f"`{metric}`", _listed(labels), said) for metric, said, labels in named)
        return table(("metric", "labels", ""), rows)
    if isinstance(named, tuple) and isinstance(named[0], Instrument):
        return table(("Prometheus", "labels", "OpenTelemetry", "kind", "unit", ""), map(_instrument, named))
    if isinstance(named, click.Command):
        return options_table([_option(each) for each in named.params if isinstance(each, click.Option)])
    if callable(named):
        return options_table(_arguments(f"{named.__module__}.{named.__qualname__}"))
    if all(isinstance(option, Option) for option in named):
        return options_table(named)
    return ", ".join(f"`{text}`" for text in sorted(named)) + "."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _instrument(each: Instrument) -> tuple[str, ...]:
    name, opentelemetry = f"`twopc_{each.prometheus}`", f"`twopc.{each.opentelemetry}`"
    return name, _listed(each.labels), opentelemetry, each.kind.value, f"`{each.unit}`", each.meaning


def _name(path: str) -> str:
    """Return how a name is called, with a link to its source, and the first sentence on it."""
    package, _, name = path.partition(".")
    found = _package(package)[name] if name else _package(package)
    last = path.rpartition(".")[2]
    if name and found.is_module and last in found.members:  # `twopc.doctor` is a function, of a module of that name
        found = found.members[last]
    source = found.filepath.relative_to(ROOT).as_posix()
    docstring = " ".join(found.docstring.value.split()) if found.docstring else ""
    said = re.split(r"(?<=[.]) ", docstring, maxsplit=1)[0].replace("``", "`")
    return f"- [`{path}{_arguments_of(found)}`](../{source}): {said}"


def _arguments_of(found: Any) -> str:
    """Return the arguments of a function or class, without types: these are in the whole docstring."""
    given, is_keyword = [], False
    for each in getattr(found, "parameters", ()):
        if each.name in ("self", "cls"):
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not is_keyword:
            is_keyword = True
            given.append("*")
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        is_keyword |= star == "*"
        given.append(f"{star}{each.name}" if star or each.default is None else f"{each.name}={each.default}")
    return f"({', '.join(given)})" if given else ""


@functools.cache  # it takes a second
def _package(name: str) -> Any:
    return griffe.load(name, search_paths=[ROOT, *ROOT.glob("plugins/*")])


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
