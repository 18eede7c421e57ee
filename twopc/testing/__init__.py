"""Tools for tests of twopc and of code built on it: in-memory sinks, and the contracts of sinks and log stores."""

from twopc.testing.contract import SinkContract
from twopc.testing.keyed_contract import KeyedSinkContract
from twopc.testing.log_store import LogStoreContract
from twopc.testing.memory import MemorySink, MemoryTableSink, MemoryTarget
from twopc.testing.query import Query

__all__ = [
    "KeyedSinkContract",
    "LogStoreContract",
    "MemorySink",
    "MemoryTableSink",
    "MemoryTarget",
    "Query",
    "SinkContract",
]
