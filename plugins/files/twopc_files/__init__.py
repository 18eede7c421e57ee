"""The file sink of twopc."""

from twopc_files.manifest import committed_files
from twopc_files.sink import FileSink

__all__ = ["FileSink", "committed_files"]
