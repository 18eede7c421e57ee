"""How a backend tells what a user may set: the documentation is made from it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from twopc.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that a user may set.

    Attributes:
        name: as the user writes it.
        values: which it takes, in a few words.
        meaning: and why the default is what it is; Markdown without relative links, as it stands on several pages.
        default: in words, as Markdown; empty where there is none.
    """

    name: str
    values: str
    meaning: str
    default: str = ""


def names(options: Iterable[Option]) -> tuple[str, ...]:
    """Their names, in the same order."""
    return tuple(option.name for option in options)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest of ``known`` for a misspelt ``name``, after a space; empty where none is
    near."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def refuse_unknown(sink: str, options: Iterable[object], known: Collection[str]) -> None:
    """Make sure that a sink, ``sink`` in the error, knows all these names of options.

    Raises:
        ConfigurationError: it doesn't.
    """
    unknown = sorted(str(name) for name in options if name not in known)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ConfigurationError(f"the {sink} sink has no option {unknown[0]!r}.{hint} It knows: {', '.join(known)}.")


def table(options: Iterable[Option]) -> str:
    """A table of Markdown."""
    rows = [_row("option", "values", "default", ""), "| --- | --- | --- | --- |"]
    rows += [_row(f"`{option.name}`", option.values, option.default, option.meaning) for option in options]
    return "\n".join(rows)


def _row(*cells: str) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"
