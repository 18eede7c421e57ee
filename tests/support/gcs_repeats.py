"""Shortens gcsfs's waits before retries, which take half a minute in total by default."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SHORTER = 1000


def repeat_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits of gcsfs."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / SHORTER)

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=sleep))
