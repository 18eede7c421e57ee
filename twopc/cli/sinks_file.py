"""The sinks file, which describes how to reach the target systems. The log contains no options and no secrets.

.. code-block:: toml

    [orders]
    backend = "kafka"
    bootstrap.servers = "broker:9092"
    sasl.password = "${KAFKA_PASSWORD}"  # or "${file:/run/secrets/kafka}"
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twopc.errors import ConfigurationError
from twopc.plugins import create_sink
from twopc.sink import TwoPhaseCommitSink

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_REFERENCE = re.compile(r"\$\{(?:file:(?P<file>[^}]+)|(?P<variable>[A-Za-z_][A-Za-z0-9_]*))\}")
_SHORTEST_HIDDEN = 4  # shorter values occur in ordinary words


class Redaction:
    """Replaces values from the environment or from files with their references, in everything that a command prints."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}

    def add(self, value: str, reference: str) -> None:
        if len(value) >= _SHORTEST_HIDDEN:
            self._secrets[value] = reference

    def __call__(self, text: str) -> str:
        for value in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(value, self._secrets[value])
        return text


def read_sinks(path: Path, redact: Redaction) -> dict[str, TwoPhaseCommitSink[Any]]:
    """Create the sinks that the file describes, by name. Adds the values of references to ``redact``. Raises
    ConfigurationError: the file can't be read, or a sink can't be created. The error names the sink and the option."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the sinks file {path} can't be read: {type(error).__name__}. {_EXAMPLE}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the sinks file {path} is not TOML: {error}. {_EXAMPLE}") from error
    if not tables:
        raise ConfigurationError(f"the sinks file {path} is empty. {_EXAMPLE}")
    return {name: _sink(path, name, table, redact) for name, table in tables.items()}


_EXAMPLE = 'It needs one table per sink of the query, such as: [orders] backend = "kafka" bootstrap.servers = "..."'


def _sink(path: Path, name: str, table: object, redact: Redaction) -> TwoPhaseCommitSink[Any]:
    if not isinstance(table, dict) or not isinstance(table.get("backend"), str):
        raise ConfigurationError(f"{path}: {name!r} has no key 'backend'. {_EXAMPLE}")
    options = {key: _fill_in(path, name, key, value, redact) for key, value in _flatten(table)}
    backend = options.pop("backend")
    try:
        return create_sink(str(backend), options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: sink {name!r}: {error}", option=error.option, sink=name) from error


def _flatten(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Join nested keys: TOML reads ``bootstrap.servers = ...`` as a table in a table, but it is one option."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield before + key, value


def _fill_in(path: Path, sink: str, key: str, value: object, redact: Redaction) -> object:
    """Replace every ``${NAME}`` with the environment variable, and every ``${file:PATH}`` with the file's contents."""
    if not isinstance(value, str):
        return value
    where = f"{path}: sink {sink!r}, option {key!r}"

    def replace(found: re.Match[str]) -> str:
        text = _read_file(found["file"], where) if found["file"] else _read_variable(found["variable"], where)
        redact.add(text, found[0])
        return text

    if "${" in _REFERENCE.sub("", value):
        raise ConfigurationError(f"{where}: '${{' must begin a ${{NAME}} of letters and _, or a ${{file:PATH}}")
    return _REFERENCE.sub(replace, value)


def _read_variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise ConfigurationError(
            f"{where}: the environment variable {name} is not set. Set it, and run the command again."
        )
    return os.environ[name]


def _read_file(name: str, where: str) -> str:
    """Read a file, without the line end that editors add at its end."""
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: the file {name} can't be read: {type(error).__name__}.") from error
