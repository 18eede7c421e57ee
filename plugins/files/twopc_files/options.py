"""The options of the file sink: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twopc.errors import ConfigurationError
from twopc.options import Option, names, refuse_unknown
from twopc_files.format_options import FORMAT_OPTIONS, LAYOUT_OPTIONS, parse_format, parse_layout
from twopc_files.layout import Layout
from twopc_files.stores.by_protocol import store_at

if TYPE_CHECKING:
    from twopc_files.formats import Format
    from twopc_files.stores.store import Store

BATCH_LOGS = ("spark", "manifest")

OPTIONS = (
    Option(
        "path",
        "path or URL",
        "needed: the folder. Driver and executors must reach the same disk or store by it",
    ),
    Option("storage_options", "mapping, or JSON as text", "what fsspec needs for the URL, such as credentials"),
    *FORMAT_OPTIONS,
    *LAYOUT_OPTIONS,
    Option(
        "batch_logs",
        "`spark`, `manifest`, `spark,manifest`",
        "logs of complete batches to keep, for readers of whole batches",
    ),
)
KNOWN = names(OPTIONS)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the user asked for, checked.

    Attributes:
        store: where committed files appear; absolute, so that it means the same on every participant.
        format: what the files are.
        layout: which records go into which.
        batch_logs: which logs of complete batches are kept.
    """

    store: Store
    format: Format
    layout: Layout
    batch_logs: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FileOptions:
        """The options of one sink; any value may be text.

        Raises:
            ConfigurationError: an unknown option, a missing one, or a value that can't be.
        """
        refuse_unknown("file", options, KNOWN)
        if not str(options.get("path") or "").strip():
            raise ConfigurationError(
                "the file sink needs the option 'path': the folder for its files, such as file:///data/orders"
            )
        store = store_at(str(options["path"]), _storage_options(options.get("storage_options")))
        return cls(store, parse_format(options), parse_layout(options), _batch_logs(options.get("batch_logs", ())))


def _storage_options(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, Mapping | None):
        # Without a word of it, as it holds credentials.
        raise ConfigurationError("the option 'storage_options' must be a mapping, or the text of a JSON object")
    return {str(name): option for name, option in (value or {}).items()}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text  # an error raised from here would carry the text with it, as its context


def _batch_logs(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not set(names) <= set(BATCH_LOGS):
        raise ConfigurationError(f"batch_logs {value!r} is not some of {', '.join(BATCH_LOGS)}, such as spark,manifest")
    return tuple(dict.fromkeys(names))
