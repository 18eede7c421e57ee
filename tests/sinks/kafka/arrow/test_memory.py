"""Encoding uses the memory of the batch before again."""

import platform
import subprocess
import sys

import pytest

ENCODE = """
import resource
import numpy as np, pyarrow as pa
from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.writers.encoding.batches import Encoder
from twopc_kafka.writers.encoding.compression import Compression
from twopc_kafka.writers.encoding.records import records_of

batch = pa.record_batch({"value": pa.array([bytes(100)] * 10_000)})
encoder, order = Encoder(ProducerIdentity(1, 0), 1_000_000, Compression("none")), np.arange(10_000)
for number in range(60):
    if number == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    encoder.encode(records_of(batch), order, {0: slice(0, 10_000)}, order)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_a_batch_takes_next_to_no_new_memory_from_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", ENCODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) / 40 < 60
