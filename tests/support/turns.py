"""Selects the parameter values that the gate runs: each commit runs another one."""

from collections.abc import Iterable
from zlib import crc32

import pytest


def take_turns(items: Iterable[pytest.Item], commit: int) -> None:
    """For each parameter that a mark ``in_turn`` names, mark the tests of all values but one as ``long``.

    Different tests of a module run different values in a commit, and successive commits cover every value. Values that
    are already ``long`` are left out.
    """
    found: dict[str, list[tuple[int, pytest.Item]]] = {}
    for item in items:
        indices: dict[str, int] = item.callspec.indices if hasattr(item, "callspec") else {}
        for mark in item.iter_markers("in_turn"):
            if mark.args[0] in indices and not item.get_closest_marker("long"):
                name = f"{mark.args[0]} of {item.nodeid.partition('[')[0]}"
                found.setdefault(name, []).append((indices[mark.args[0]], item))
    for name, tests in found.items():
        values = sorted({value for value, _ in tests})
        kept = values[(commit + crc32(name.encode())) % len(values)]
        for value, item in tests:
            if value != kept:
                item.add_marker(pytest.mark.long)
