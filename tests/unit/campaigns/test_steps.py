"""The calls that ``make prove-tables`` turns into steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.campaigns.every_step.steps import Steps
from tests.campaigns.tables.calls import on_delta, on_files, on_requests, on_sql


class Named(Steps):
    """Patches nothing, and finds each call that is to be a step."""

    def __init__(self) -> None:
        self.found: list[Callable[..., Any]] = []

    def patch_requests(self, client: Any, method: str, described: Callable[..., tuple[str, bool]]) -> None:
        self.found.append(getattr(client, method))


@pytest.mark.parametrize("turn", [on_sql, on_requests, partial(on_files, is_on_disk=False), on_delta])
def test_each_call_that_is_to_be_a_step_exists(turn: Callable[[Steps], None]) -> None:
    named = Named()
    turn(named)
    assert named.found
