"""Delta Lake tables as a two-phase-commit sink of twopc."""

from twopc_delta.sink import DeltaSink

__all__ = ["DeltaSink"]
