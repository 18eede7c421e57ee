"""The options of the file sink: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twopc.errors import ConfigurationError
from twopc_files.json_lines import JsonLines
from twopc_files.parquet import COMPRESSIONS, Parquet
from twopc_files.stores.by_protocol import store_at

if TYPE_CHECKING:
    from twopc_files.formats import Format
    from twopc_files.stores.store import Store

KNOWN = ("path", "storage_options", "format", "compression")
FORMATS = ("parquet", "json")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the user asked for, checked.

    Attributes:
        store: where committed files appear; absolute, so that it means the same on every participant.
        format: what the files are.
    """

    store: Store
    format: Format

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FileOptions:
        """The options of one sink; any value may be text.

        Raises:
            ConfigurationError: an unknown option, a missing one, or a value that can't be.
        """
        unknown = sorted(str(name) for name in options if name not in KNOWN)
        if unknown:
            near = difflib.get_close_matches(unknown[0].lower(), KNOWN, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"the file sink has no option {unknown[0]!r}.{hint} It knows: {', '.join(KNOWN)}.")
        if not str(options.get("path") or "").strip():
            raise ConfigurationError(
                "the file sink needs the option 'path': the folder for its files, such as file:///data/orders"
            )
        store = store_at(str(options["path"]), _storage_options(options.get("storage_options")))
        return cls(store, _format(options))


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


def _format(options: Mapping[str, Any]) -> Format:
    name = str(options.get("format", "parquet")).strip().lower()
    if name not in FORMATS:
        raise ConfigurationError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    if name == "parquet":
        compression = str(options.get("compression", "snappy")).strip().lower()
        if compression not in COMPRESSIONS:
            raise ConfigurationError(
                f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}, which Parquet has"
            )
        return Parquet(compression)
    if "compression" in options:
        raise ConfigurationError(f"the option 'compression' is for format parquet only, not for {name}: leave it out")
    return JsonLines()
