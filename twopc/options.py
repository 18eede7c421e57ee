"""How a backend declares its options, and the parser that all backends share.

A backend declares each option once. The parser checks the user's values, and the documentation is generated from the
same declaration. ``docs/write-your-own-sink.md`` has an example.

Any value may be text, because Spark's options and the sinks file have only text. All backends share the error messages:

- the audit sink has no option 'pth'. Did you mean 'path'? Its options: path, mode, rows_per_file.
- the audit sink needs the option 'path': a path or URL, such as /data/orders or s3://bucket/orders.
- the option 'mode' of the audit sink must be one of append, upsert.

No error repeats a value, because it may be a secret given to the wrong option. A custom ``Kind`` must follow this: its
``read`` raises a bare ValueError, and its ``must_be`` completes the sentence.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from twopc.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of option value.

    Attributes:
        values: the column "values" in the documentation, as Markdown.
        must_be: completes the sentence "the option 'x' must be …".
        read: converts the user's input to a value. Raises ValueError or TypeError if the input can't be converted.
    """

    values: str
    must_be: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: the name that users write.
        kind: the values that it takes.
        meaning: what the option does, and the reason for its default. Markdown without relative links, because several
            pages show it.
        default: the value if the user gives none, or None.
        default_text: the default in words for the documentation, as Markdown, if needed.
        needed: whether the user must give it.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    default_text: str = ""
    needed: bool = False

    @property
    def default_cell(self) -> str:
        """The column "default" in the documentation."""
        if self.default_text or self.default is None:
            return self.default_text
        if isinstance(self.default, bool | str):
            return f"`{str(self.default).lower()}`"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def names(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the names of options, in the same order."""
    return tuple(option.name for option in options)


# Kinds. ---------------------------------------------------------------------------------------------------------


def text(must_be: str = "text that is not empty", values: str = "text") -> Kind:
    """Non-blank text, without surrounding whitespace."""

    def read(given: Any) -> str:
        stripped = given.strip() if isinstance(given, str) else ""
        return stripped or _refuse()

    return Kind(values, must_be, read)


def place(values: str = "path or URL", example: str = "/data/orders or s3://bucket/orders") -> Kind:
    """A folder, as text or ``os.PathLike``; see ``twopc.stores.places`` for further checks."""
    return Kind(
        values,
        f"a {values}, such as {example}",
        lambda given: text().read(os.fspath(given) if isinstance(given, os.PathLike) else given),
    )


def local_file(example: str) -> Kind:
    """A file on the machine's own disks, as an absolute path or its ``file:`` URL."""

    def read(given: Any) -> str:
        path = re.sub("^file:(//)?(?=/[^/])", "", place().read(given))
        return path if path.startswith("/") and not path.endswith("/") else _refuse()

    return Kind("path", f"the absolute path of a local file, such as {example}", read)


def whole_number(least: int | None = None, most: int | None = None, values: str = "whole number") -> Kind:
    """A whole number within bounds. ``values`` may name its unit."""

    def read(given: Any) -> int:
        number = int(str(given)) if re.fullmatch(r"[+-]?[0-9]+", str(given).strip()) else _refuse()
        return int(_within(number, least, most))

    return Kind(values, f"a whole number{_bounds(least, most)}", read)


def mapping() -> Kind:
    """Names and values, as a mapping or as the text of a JSON object. None is empty."""

    def read(given: Any) -> dict[str, Any]:
        parsed = json.loads(given) if isinstance(given, str) else given
        if not isinstance(parsed, Mapping | None):
            raise TypeError
        return {str(name): value for name, value in (parsed or {}).items()}

    return Kind("mapping, or JSON as text", "a mapping, or the text of a JSON object", read)


def seconds(least: float, most: float) -> Kind:
    """A time in seconds, possibly fractional."""
    return Kind("seconds", f"seconds{_bounds(least, most)}", lambda given: _within(float(str(given)), least, most))


def choice(*choices: str) -> Kind:
    """One of a set of words, case-insensitive."""

    def read(given: Any) -> str:
        chosen = str(given).strip().lower()
        return chosen if chosen in choices else _refuse()

    return Kind(listed(choices), f"one of {', '.join(choices)}", read)


def flag() -> Kind:
    """True or false."""
    words = choice("true", "false")
    return Kind(words.values, words.must_be, lambda given: words.read(given) == "true")


def columns() -> Kind:
    """Names of columns, as a list or as comma-separated text."""
    return Kind("columns", "names of columns, each once, such as day,city", _each_once)


def choices(*words: str) -> Kind:
    """A subset of some words, possibly empty, as a list or as comma-separated text."""

    def read(given: Any) -> tuple[str, ...]:
        chosen = _each_once(given) if given else ()
        return chosen if {*chosen} <= {*words} else _refuse()

    together = ",".join(words)
    return Kind(f"{listed(words)}, `{together}`", f"some of {', '.join(words)}, each once, such as {together}", read)


def qualified_name(must_be: str = "a name such as orders or sales.orders") -> Kind:
    """A table name, with or without its schema and a dot before it: (schema or None, table)."""

    def read(given: Any) -> tuple[str | None, str]:
        schema, dot, table = str(given).strip().rpartition(".")
        if not table or "." in schema or (dot and not schema):
            _refuse()
        return schema or None, table

    return Kind("text", must_be, read)


def listed(words: Iterable[str]) -> str:
    """Return the words as code, for the documentation."""
    return ", ".join(f"`{word}`" for word in words)


def _each_once(given: Any) -> tuple[str, ...]:
    found = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    is_list = isinstance(found, list | tuple) and bool(found)
    if not is_list or not all(isinstance(name, str) and name for name in found) or len({*found}) < len(found):
        _refuse()
    return tuple(found)


def _within(number: Any, least: float | None, most: float | None) -> Any:
    is_within = (least is None or number >= least) and (most is None or number <= most)  # false for NaN with a bound
    return number if is_within else _refuse()


def _bounds(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f", {least} or more"
    return f", {most} or less" if least is None else f" from {least} to {most}"


def _refuse() -> Any:
    raise ValueError


# Options of several backends. -----------------------------------------------------------------------------------

UPSERT_BY = Option(
    "upsert_by",
    columns(),
    "the columns by which a record replaces a row, such as `id,day`; if not set, records are only added",
)


# Parsing. -------------------------------------------------------------------------------------------------------


def parse(owner: str, options: Iterable[Option], given: Mapping[str, Any], others: str = "") -> dict[str, Any]:
    """Return the values of ``options``: the user's values, and the defaults, if any, of the options that the user did
    not give.

    Unknown names in ``given`` are ignored, because some backends pass them on. Others call ``refuse_unknown``.

    Args:
        owner: the name for errors, such as ``the audit sink``.
        options: the options to read.
        given: the user's options.
        others: the options that the backend passes on, in words.

    Raises:
        ConfigurationError: a needed option is missing or misspelled, or a value is wrong.
    """
    options = tuple(options)
    values = {}
    for option in options:
        if option.needed and _is_blank(given.get(option.name)):
            for name in given:
                if name not in names(options) and did_you_mean(name, [option.name]):
                    raise unknown(owner, name, names(options), others)
            raise ConfigurationError(
                f"{owner} needs the option {option.name!r}: {option.kind.must_be}.", option=option.name
            )
        if option.name in given:
            values[option.name] = _read(owner, option, given[option.name])
        elif option.default is not None:
            values[option.name] = option.default
    return values


def wrong_value(owner: str, name: str, must_be: str) -> ConfigurationError:
    """Return the error for an invalid value, without the value."""
    return ConfigurationError(f"the option {name!r} of {owner} must be {must_be}.", option=name)


def unknown(
    owner: str, name: str, known: Iterable[str], others: str = "", unlisted: Iterable[str] = ()
) -> ConfigurationError:
    """Return the error for an unknown option.

    Args:
        owner: as for ``parse``.
        name: the unknown option.
        known: the options to list, and to suggest if ``name`` is a misspelling.
        others: the options that the backend passes on, in words.
        unlisted: options among these to suggest as well.
    """
    known = tuple(known)
    known_and_others = ", ".join([*known, *([others] if others else [])])
    hint = did_you_mean(name, [*known, *unlisted])
    return ConfigurationError(f"{owner} has no option {name!r}.{hint} Its options: {known_and_others}.", option=name)


def refuse_unknown(owner: str, given: Iterable[object], options: Iterable[Option]) -> None:
    """Check that all names in ``given`` are names of ``options``.

    Raises:
        ConfigurationError: a name is unknown.
    """
    known = names(options)
    if strangers := sorted(str(name) for name in given if name not in known):
        raise unknown(owner, strangers[0], known)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a space and a sentence that suggests the nearest of ``known`` for a misspelled ``name``; empty if none is
    near."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f" Did you mean {spelled[near[0]]!r}?" if near else ""


def _read(owner: str, option: Option, value: Any) -> Any:
    try:
        return option.kind.read(value)
    except (ValueError, TypeError):
        pass  # raised below: an error raised here would carry the value in its context
    raise wrong_value(owner, option.name, option.kind.must_be)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
