"""The options of the file sink, with their checks. Those of formats and layout are in ``format_options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twopc.options import Option, choices, mapping, parse, place, refuse_unknown
from twopc_files.format_options import FORMAT_OPTIONS, LAYOUT_OPTIONS, OWNER, parse_format, parse_layout
from twopc_files.layout import Layout
from twopc_files.stores.by_protocol import store_at

if TYPE_CHECKING:
    from twopc_files.formats import Format
    from twopc_files.stores.store import Store


_PLACE = (
    Option("path", place(), "the folder. Driver and executors must reach the same disk or store by it", needed=True),
    Option(
        "storage_options",
        mapping(),
        "what fsspec needs for the URL, such as credentials",
    ),
)
_BATCH_LOGS = Option(
    "batch_logs",
    choices("spark", "manifest"),
    "logs of complete batches to keep, for readers of whole batches",
)

OPTIONS = (*_PLACE, *FORMAT_OPTIONS, *LAYOUT_OPTIONS, _BATCH_LOGS)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options, checked.

    Attributes:
        store: the store of the folder of committed files; absolute, so that it is the same for every participant.
        format: the format of the files.
        layout: which records go into which file.
        batch_logs: the logs of complete batches that the sink keeps.
    """

    store: Store
    format: Format
    layout: Layout
    batch_logs: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FileOptions:
        """Parse the options of one sink; any value may be text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, (*_PLACE, _BATCH_LOGS), options)
        store = store_at(values["path"], values.get("storage_options", {}))
        return cls(store, parse_format(options), parse_layout(options), values.get("batch_logs", ()))
