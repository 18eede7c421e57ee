"""A target system that repeatedly lags behind its commits."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from twopc.errors import Retriable


def require_each_time_behind_measured_by_itself(
    sink: Any, shows: Callable[[Callable[..., int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a second lag is timed from its own start. ``shows`` has the sink find the batch that a function
    returns."""
    shown, now_s = 0, 1000.0
    sink.last_batch_id = 1
    shows(lambda *_, **__: shown)
    monkeypatch.setattr("twopc.failures.time", SimpleNamespace(monotonic=lambda: now_s))
    with pytest.raises(Retriable, match="it is behind"):
        sink.open()
    shown = 1
    sink.open()
    shown, now_s = 0, 5000.0
    with pytest.raises(Retriable, match="it is behind"):
        sink.open()
