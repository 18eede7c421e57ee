"""Counts calls of a function without changing what it does."""

from collections.abc import Callable
from typing import Any

import pytest


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """Return a list that collects the arguments of each call from now on."""
    calls: list[tuple[Any, ...]] = []
    call: Callable[..., Any] = getattr(owner, name)

    def count(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, count)
    return calls
