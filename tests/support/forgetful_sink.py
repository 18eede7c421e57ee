"""A sink whose target system keeps nothing, so that all memory of a process is the driver's."""

from twopc import Committable
from twopc.testing import MemorySink


class ForgetfulSink(MemorySink):
    """Counts the records that it commits, in all its instances.

    Attributes:
        committed: the number of records.
    """

    committed = 0

    def commit(self, committable: Committable) -> None:
        with self.target.lock:
            ForgetfulSink.committed += len(self.target.open.pop(committable.transaction_id, ()))
