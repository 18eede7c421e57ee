"""Arguments and options that several commands share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

TIMEOUT_S = 60.0
"""Longer than a client takes to find that no server listens (10 s), and than most brokers take to restart."""


class Seconds(click.FloatRange):
    """A number of seconds that a thread can wait."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not found <= threading.TIMEOUT_MAX:  # NaN is no time either
            self.fail(f"{value} is not a number of seconds that can be waited.", param, ctx)
        return found


log = click.argument("log")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
timeout_s = click.option(
    "--timeout-s",
    type=Seconds(),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for target systems, in total.",
)
replay_copies = click.option(
    "--replay-copies", metavar="URL", help="The folder of the query's replay copies, if it has them."
)
yes = click.option("--yes", is_flag=True, help="Do not ask.")


def sinks_file(*, required: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option ``--sinks``."""
    return click.option(
        "--sinks",
        "sinks_file",
        required=required,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML, one table per sink of the query: backend and options. ${NAME} comes from the environment.",
    )
