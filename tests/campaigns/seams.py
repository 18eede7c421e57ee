"""Seams: functions of the real code whose calls are redirected for a while.

A seam names a function by its module and qualified name, so it survives every change inside that function. If the
function is renamed, the seam raises an error.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True, slots=True)
class Seam:
    """A redirection of one function's calls to another.

    Attributes:
        where: the function, as ``module:qualified.name``.
        instead: the function to call instead. It gets the real function, then the arguments of the call.
        called_in: if given, a function; only calls from its body are redirected.
    """

    where: str
    instead: Callable[..., Any]
    called_in: str = ""


def returning(answer: Any) -> Callable[..., Any]:
    """Return a replacement that returns ``answer`` and does nothing else."""
    return lambda _real, *_, **__: answer


nothing = returning(None)


@contextlib.contextmanager
def patched(seams: Iterable[Seam]) -> Iterator[None]:
    """Redirect the calls at every seam while the context is open.

    Raises:
        LookupError: the code has no such function.
    """
    bodies = {seam.called_in: _codes(seam.called_in) for seam in seams if seam.called_in}
    with contextlib.ExitStack() as undo:
        for seam in seams:
            owner, name, original = _found(seam.where)
            is_inherited = name not in vars(owner)
            undo.callback(delattr, owner, name) if is_inherited else undo.callback(setattr, owner, name, original)
            setattr(owner, name, _redirected(original, seam.instead, bodies.get(seam.called_in)))
        yield


def _found(where: str) -> tuple[Any, str, Any]:
    module, qualified = where.split(":")
    owner: Any = importlib.import_module(module)
    *outer, name = qualified.split(".")
    try:
        for part in outer:
            owner = getattr(owner, part)
        return owner, name, inspect.getattr_static(owner, name)
    except AttributeError as error:
        raise LookupError(f"there is no {where}: the code has changed, so change this seam") from error


def _codes(where: str) -> frozenset[CodeType]:
    """Return the code objects of a function and of the functions defined in its body."""
    _, _, found = _found(where)
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    codes, rest = set(), [inspect.unwrap(function).__code__]
    while rest:
        code = rest.pop()
        codes.add(code)
        rest += [const for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(codes)


def _redirected(original: Any, instead: Callable[..., Any], within: frozenset[CodeType] | None) -> Any:
    kind = type(original) if isinstance(original, classmethod | staticmethod) else None
    real = original.__func__ if kind else original

    def call(*arguments: Any, **named: Any) -> Any:
        if within is None or sys._getframe(1).f_code in within:
            return instead(real, *arguments, **named)
        return real(*arguments, **named)

    if inspect.isroutine(real):
        call.__wrapped__ = real  # type: ignore[attr-defined]  # another seam may be ``called_in`` this function
    return kind(call) if kind else call
