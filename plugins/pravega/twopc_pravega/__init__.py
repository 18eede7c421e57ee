"""Pravega streams as a two-phase-commit sink of twopc."""

from twopc_pravega.sink import PravegaSink

__all__ = ["PravegaSink"]
