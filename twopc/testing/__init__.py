"""For tests of twopc and of whatever is built on it: a sink in memory, and the contract that every sink keeps."""

from twopc.testing.contract import SinkContract
from twopc.testing.memory import MemorySink, MemoryTarget

__all__ = ["MemorySink", "MemoryTarget", "SinkContract"]
