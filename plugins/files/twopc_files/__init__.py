"""Files as a two-phase-commit sink of twopc."""

from twopc_files.manifest import committed_files

__all__ = ["committed_files"]
