"""A sink whose target system keeps nothing, so that a process's memory use is the driver's alone."""

from twopc import Committable
from twopc.testing import MemorySink


class ForgetfulSink(MemorySink):
    """Counts the records that all of its instances commit.

    Attributes:
        committed: the number of records.
    """

    committed = 0

    def commit(self, committable: Committable) -> None:
        with self.target.lock:
            ForgetfulSink.committed += len(self.target.open.pop(committable.transaction_id, ()))
