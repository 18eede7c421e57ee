"""What the Arrow writer encodes is what another client decodes, record by record."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.util import encode_varint

from twopc.errors import ConfigurationError
from twopc_kafka.options import parse_options
from twopc_kafka.writers import arrow as writer
from twopc_kafka.writers.encoding import records
from twopc_kafka.writers.encoding.batches import OVERHEAD_BYTES, alone_bytes, in_runs
from twopc_kafka.writers.encoding.compression import NUMBERS, Compression
from twopc_kafka.writers.encoding.records import encoded_headers
from twopc_kafka.writers.encoding.varints import rows, sizes, varints
from twopc_kafka.writers.settings import settings as settings_of

CODECS = sorted(NUMBERS)
EDGES = sorted({(1 << bits) + off for bits in range(63) for off in (-1, 0)} | {(1 << 63) - 1})


pytestmark = pytest.mark.in_turn("from_this_size_on_records_are_copied_by_themselves")


@pytest.fixture(scope="module", params=[0, 1 << 40], ids=["each by itself", "all at once"], autouse=True)
def from_this_size_on_records_are_copied_by_themselves(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "LARGE_BYTES", request.param)
        yield


def reference_varint(value: int) -> bytes:
    written = bytearray()
    encode_varint(value, written.append)
    return bytes(written)


# Varints. -------------------------------------------------------------------------------------------------------------


def test_varints_are_right_on_both_sides_of_every_length() -> None:
    values = [*EDGES, *(-edge for edge in EDGES), -(1 << 63)]
    column = np.array(values, np.int64)
    expected = [reference_varint(value) for value in values]
    assert rows([varints(column)]).to_pylist() == expected
    assert sizes(column).tolist() == [len(each) for each in expected]


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 3), max_size=20))
def test_columns_of_varints_are_joined_row_by_row(values: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[n] for row in values], np.int64) for n in range(3)]
    expected = [b"".join(map(reference_varint, row)) for row in values]
    assert rows([varints(column) for column in columns]).to_pylist() == expected


# Records. -------------------------------------------------------------------------------------------------------------

SOME_BYTES = st.none() | st.binary(max_size=300)
A_HEADER = st.tuples(st.text(max_size=8), SOME_BYTES)
A_RECORD = st.tuples(
    SOME_BYTES, SOME_BYTES, st.lists(A_HEADER, max_size=3).map(tuple), st.integers(0, (1 << 62) - 1)
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(A_RECORD, min_size=1, max_size=40), st.sampled_from(CODECS), st.integers(100, 5000))
def test_another_client_decodes_every_field_as_it_was_given(
    encoding: Any, given_records: list[Any], codec: str, batch_bytes: int
) -> None:
    records = [encoding.Given(*record) for record in given_records]
    batches = encoding.one_partition(encoding.columns(records), codec, batch_bytes)
    assert encoding.decoded(batches) == records
    assert all(len(batch.data) <= batch_bytes or batch.count == 1 for batch in batches)


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 100_000])
def test_lengths_on_both_sides_of_a_varints_length_are_decoded(encoding: Any, length: int) -> None:
    text = bytes(length)
    records = [encoding.Given(text, text, (("h" * length, text),)), encoding.Given(b"after")]
    assert encoding.decoded(encoding.one_partition(encoding.columns(records))) == records


def test_offsets_of_a_batch_of_many_records_grow_to_three_bytes(encoding: Any) -> None:
    records = [encoding.Given(str(n).encode()) for n in range(20_000)]
    [batch] = encoding.one_partition(encoding.columns(records))
    assert encoding.decode(batch) == records


def test_slices_of_a_larger_batch_are_encoded_as_they_are(encoding: Any) -> None:
    records = [encoding.Given(bytes(n), b"k" * n, (("h", bytes(n)),) * (n % 3)) for n in range(30)]
    sliced = encoding.columns(records).slice(7, 19)
    assert encoding.decoded(encoding.one_partition(sliced)) == records[7:19]


def test_bytes_that_arrow_has_under_a_null_are_not_sent(encoding: Any) -> None:
    under = pa.array([b"given", b"left over", b"given too"])
    value = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), *under.buffers()[1:]])
    columns = encoding.columns([encoding.Given(b"")] * 3)
    found = encoding.decoded(encoding.one_partition(replace(columns, value=value)))
    assert [record.value for record in found] == [b"given", None, b"given too"]


def test_headers_of_a_slice_are_those_of_its_records(encoding: Any) -> None:
    lists = [None, [{"key": "a", "value": b"1"}], [], [{"key": "b", "value": None}] * 2]
    column = pa.array(lists, encoding.headers_type)
    whole = encoded_headers(column).to_pylist()
    assert whole == [b"\0", b"\x02\x02a\x021", b"\0", b"\x04\x02b\x01\x02b\x01"]
    assert encoded_headers(column.slice(1)).to_pylist() == whole[1:]


# Batches. -------------------------------------------------------------------------------------------------------------


def test_partitions_keep_their_order_and_number_their_records_without_a_gap(encoding: Any) -> None:
    encoder = encoding.encoder(batch_bytes=500)
    rng = np.random.default_rng(7)
    seen: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    expected: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    sequences = dict.fromkeys(seen, 0)
    for _ in range(3):
        records = [encoding.Given(rng.bytes(int(rng.integers(60)))) for _ in range(50)]
        chosen = rng.integers(3, size=len(records))
        order = np.argsort(chosen, kind="stable")
        ends = np.searchsorted(chosen[order], [0, 1, 2, 3])
        parts = {n: slice(int(ends[n]), int(ends[n + 1])) for n in range(3)}
        for n, record in zip(chosen.tolist(), records, strict=True):
            expected[n].append(record)
        for batch in encoder.encode(encoding.columns(records), order, parts, order):
            assert MemoryRecords(batch.data).next_batch().base_sequence == sequences[batch.partition]
            sequences[batch.partition] += batch.count
            seen[batch.partition] += encoding.decode(batch)
    assert seen == expected


def test_sequence_numbers_start_again_at_zero_behind_the_largest(encoding: Any) -> None:
    encoder = encoding.encoder()
    encoder._next_sequence[0] = (1 << 31) - 2
    found = []
    for _ in range(2):
        [batch] = encoder.encode(
            encoding.columns([encoding.Given(b"a")] * 3), np.arange(3), {0: slice(0, 3)}, np.arange(3)
        )
        found.append(MemoryRecords(batch.data).next_batch().base_sequence)
    assert found == [(1 << 31) - 2, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_makes_what_repeats_itself_smaller_and_never_makes_a_batch_larger(encoding: Any, codec: str) -> None:
    repeating = encoding.columns([encoding.Given(b"again and again " * 50)] * 100)
    noise = encoding.columns([encoding.Given(np.random.default_rng(n).bytes(900)) for n in range(100)])
    plain = len(encoding.one_partition(repeating)[0].data)
    [packed] = encoding.one_partition(repeating, codec)
    [incompressible] = encoding.one_partition(noise, codec)
    assert (len(packed.data) < plain / 5) == (codec != "none")
    assert MemoryRecords(packed.data).next_batch().compression_type == NUMBERS[codec]
    assert len(incompressible.data) <= len(encoding.one_partition(noise)[0].data)
    assert len(encoding.decode(incompressible)) == 100


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_the_level_reaches_the_codec(codec: str) -> None:
    data = pa.py_buffer(b"".join(b'{"id": %d, "state": "ok"}' % (n * 7919 % 10_007) for n in range(10_000)))
    assert Compression(codec, 9).compress(data).size < Compression(codec, 1).compress(data).size


@pytest.mark.parametrize(("codec", "level"), [("gzip", 99), ("snappy", 1)])
def test_a_level_that_is_not_there_is_refused_by_its_option(codec: str, level: int) -> None:
    with pytest.raises(ConfigurationError, match=r"'compression\.level'"):
        Compression(codec, level).check()


def test_a_codec_may_be_named_in_any_case() -> None:
    options = parse_options({"bootstrap.servers": "localhost:9092", "topic": "orders", "compression.type": "GZIP"})
    assert settings_of(options.properties).compression == Compression("gzip")


def test_the_size_of_a_record_that_travels_alone_is_known_to_the_byte(encoding: Any) -> None:
    lengths = [0, 60, 61, 62, 63, 64, 8180, 8190, 100_000]
    records = encoding.columns([encoding.Given(bytes(n), b"k" * n, (("h" * n, b"v"),)) for n in lengths])
    for position, size in enumerate(alone_bytes(records).tolist()):
        [alone] = encoding.one_partition(records.slice(position, position + 1))
        assert len(alone.data) == size


def test_what_is_encoded_at_a_time_is_bounded_in_bytes_and_in_number(
    encoding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHUNK_RECORDS", 7)
    monkeypatch.setattr(writer, "CHUNK_BYTES", 1000)
    lengths = [1] * 20 + [400] * 10 + [5000] + [1] * 5
    records = encoding.columns([encoding.Given(bytes(length)) for length in lengths])
    for room in (1, 500):  # a batch of one record, and one of several
        chunks = list(writer._chunks(in_runs(records, room), records.at_most))
        assert [n for chunk in chunks for n in range(chunk.start, chunk.stop)] == list(range(len(records)))
        for chunk in chunks:
            assert chunk.stop - chunk.start <= 7
            assert sum(sorted(lengths[chunk])[:-1]) <= 1000 + room  # neither a record nor a run is cut


def test_what_may_go_anywhere_fills_one_batch_after_the_other(encoding: Any) -> None:
    records = encoding.columns([encoding.Given(bytes(length)) for length in [100] * 20 + [5000] + [100] * 5])
    runs = in_runs(records, 1000).tolist()
    assert [runs.count(run) for run in range(max(runs) + 1)] == [8, 8, 4, 1, 5]
    for run in set(runs):
        first = runs.index(run)
        of_run = records.slice(first, first + runs.count(run))
        assert len(encoding.one_partition(of_run, batch_bytes=OVERHEAD_BYTES + 1000)) == 1


def test_a_record_larger_than_a_batch_should_be_travels_alone(encoding: Any) -> None:
    sizes_given = [10, 3000, 10, 10]
    records = encoding.columns([encoding.Given(bytes(size)) for size in sizes_given])
    batches = encoding.one_partition(records, batch_bytes=OVERHEAD_BYTES + 100)
    assert [batch.count for batch in batches] == [1, 1, 2]
