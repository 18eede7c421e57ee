"""A stand-in for a failing call."""

from collections.abc import Callable
from typing import Any, NoReturn


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that accepts any arguments and raises ``error``."""

    def call(*_: object, **__: object) -> NoReturn:
        raise error

    return call
