"""Two-phase-commit sinks: several systems commit a batch exactly once, on one decision, or not at all.

``__init__.pyi`` lists the public names. Each is imported on first use, so tasks and commands load only what they need.
"""

import ast
import pkgutil
from importlib import import_module

from twopc.foreign import refuse_foreign_files

_MODULES = {
    alias.name: node.module
    for node in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = [*_MODULES]  # noqa: PLE0604  # each is a text


def __getattr__(name: str) -> object:
    if (module := f"twopc.{name}") in _MODULES.values():
        return import_module(module)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


refuse_foreign_files()
