"""A stand-in for any call that fails."""

from collections.abc import Callable
from typing import Any, NoReturn


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that takes anything and raises ``error``."""

    def call(*_: object, **__: object) -> NoReturn:
        raise error

    return call
