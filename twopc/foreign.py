"""Detect another distribution in this package's folder.

This package comes with the distribution ``twopc-core``. On PyPI, ``twopc`` is an unrelated distribution with a package
of the same name. pip installs both into one folder without a warning.
"""

import functools
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_PACKAGE = Path(__file__).parent


@functools.cache  # it searches every folder of sys.path, and two packages call it
def refuse_foreign_files() -> None:
    """Raise ImportError if another distribution has written into this package's folder."""
    try:
        foreign = distribution(_PACKAGE.name)
    except PackageNotFoundError:
        return
    theirs = [Path(str(foreign.locate_file(file))) for file in foreign.files or ()]
    if any(file.parent == _PACKAGE for file in theirs):
        raise ImportError(
            f"the distribution 'twopc' {foreign.version} is not this project's, and has written into {_PACKAGE}, the"
            " folder of 'twopc-core'. Repair it: pip uninstall twopc twopc-core, then install twopc-core again."
        )
