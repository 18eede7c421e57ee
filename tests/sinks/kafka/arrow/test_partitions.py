"""Records land where Spark's own sink and the Java client put them."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from twopc_kafka.writers.encoding.partitions import choose, grouped, murmur2

# Kafka's own test of its hash: clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = st.lists(st.none() | st.binary(max_size=70), min_size=1, max_size=50)


def test_keys_are_hashed_as_kafkas_own_test_says() -> None:
    keys = pa.array(list(VECTORS), pa.binary())
    assert murmur2(keys).astype(np.int32).tolist() == list(VECTORS.values())


@settings(deadline=None)
@given(KEYS, st.integers(0, 5))
def test_keys_of_every_length_are_hashed_as_another_client_does_also_in_a_slice(
    keys: list[bytes | None], skipped: int
) -> None:
    column = pa.array(keys, pa.binary()).slice(skipped)
    hashed = murmur2(column)
    assert len(hashed) == len(column)
    for key, found in zip(column.to_pylist(), hashed, strict=True):
        assert key is None or int(found) == reference(key)


def test_a_long_key_among_short_ones_is_hashed_as_well() -> None:
    keys = [b"short", bytes(range(256)) * 40, b""]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [reference(key) for key in keys]


def test_the_column_wins_over_the_key_and_the_key_over_the_sticky_partition() -> None:
    key = pa.array([b"a", b"a", None, None, b""], pa.binary())
    named = pa.array([None, 3, 4, None, None], pa.int32())
    by_key = [(reference(text) & 0x7FFFFFFF) % 7 for text in (b"a", b"")]
    sticky = np.full(5, 5)
    assert choose(7, sticky, key, named).tolist() == [by_key[0], 3, 4, 5, by_key[1]]
    assert choose(7, sticky, None, named).tolist() == [5, 3, 4, 5, 5]
    assert choose(7, sticky, key, None).tolist() == [by_key[0], by_key[0], 5, 5, by_key[1]]
    assert choose(7, sticky, None, None).tolist() == [5, 5, 5, 5, 5]


@settings(deadline=None)
@given(st.lists(st.integers(0, 70_000) | st.integers(0, 3), min_size=1, max_size=60))
def test_records_of_one_partition_stay_in_their_order(chosen: list[int]) -> None:
    order, parts = grouped(np.array(chosen))
    found = {number: order[part].tolist() for number, part in parts.items()}
    assert found == {number: [n for n, at in enumerate(chosen) if at == number] for number in set(chosen)}
