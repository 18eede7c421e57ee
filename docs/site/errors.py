"""Fills ``docs/errors.md`` in from the classes of ``twopc.errors``: ``python docs/site/errors.py``.

The text between ``<!-- twopc.errors.TransactionLost -->`` and ``<!-- end -->`` describes that class. The text after
``<!-- twopc.errors -->`` is the tree of all classes. Everything else on the page is written by hand. A test compares
the page with the classes.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from twopc import errors
from twopc.errors import TwoPhaseCommitError

PAGE = Path(__file__).parents[1] / "errors.md"

_BLOCK = re.compile(r"^<!-- (twopc\.errors[.\w]*) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def classes() -> list[type[TwoPhaseCommitError]]:
    """Return every error class, in the order of the module."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TwoPhaseCommitError)]


def filled(page: str) -> str:
    """Return the page with its blocks as the classes have them."""
    return _BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n\n{_block(found[1])}\n\n<!-- end -->", page)


def _block(path: str) -> str:
    if path == errors.__name__:
        return str(re.findall(r"^```text\n.*^```$", errors.__doc__ or "", re.MULTILINE | re.DOTALL)[0])
    return "\n\n".join(_described(getattr(errors, path.rpartition(".")[2])))


@functools.cache  # it takes a second
def _module() -> Any:
    return griffe.load(errors.__name__)


def _described(kind: type[TwoPhaseCommitError]) -> Iterator[str]:
    """What happened, by the first paragraph of a class's docstring, and its own attributes as a list. What to do is
    written on the page, with the page's links."""
    docstring = _module()[kind.__name__].docstring
    assert docstring is not None, kind
    text, *others = docstring.parse("google")
    yield _markdown(text.value.partition("\n\n")[0])
    for section in others:
        if section.kind is griffe.DocstringSectionKind.attributes:
            yield "Attributes:"
            yield "\n".join(_item(each.name, each.description) for each in section.value)


def _item(name: str, description: str) -> str:
    text = f"- `{name}`: {' '.join(_markdown(description).split())}"
    return "\n".join(textwrap.wrap(text, 120, subsequent_indent="  ", break_on_hyphens=False))


def _markdown(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
