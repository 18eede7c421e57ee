"""Small parts of record batches are written together, in their order; what is large enough does not wait."""

from collections.abc import Iterator

import pyarrow as pa

from twopc.spark.output import Part
from twopc.spark.task import ENOUGH_BYTES, ENOUGH_RECORDS, gather


def part(sink: str, *values: int, text: str = "") -> Part:
    column = pa.array(values, pa.int64())
    records = pa.record_batch({"value": column, "text": pa.array([text] * len(values), pa.string())})
    return Part(sink, records, hashes=column, source=pa.StructArray.from_arrays([column], ["id"]))


def values(part: Part) -> list[int]:
    found: list[int] = part.records["value"].to_pylist()
    assert part.hashes is not None
    assert part.source is not None
    assert part.hashes.to_pylist() == [row["id"] for row in part.source.to_pylist()] == found
    return found


def test_small_parts_of_each_sink_are_one_at_the_end() -> None:
    given = [part("a", 1), part("b", 2), part("a"), part("a", 3, 4), part("b", 5)]
    assert [(each.sink, values(each)) for each in gather(given)] == [("a", [1, 3, 4]), ("b", [2, 5])]


def test_what_is_enough_goes_on_before_more_is_read() -> None:
    half = range(ENOUGH_RECORDS // 2)
    read: list[int] = []

    def given() -> Iterator[Part]:
        for number in range(4):
            read.append(number)
            yield part("a", *half)

    assert [(values(each), len(read)) for each in gather(given())] == [([*half, *half], 2), ([*half, *half], 4)]


def test_large_records_do_not_wait_for_their_number() -> None:
    large = "x" * (ENOUGH_BYTES // 2)
    found = [values(each) for each in gather([part("a", 1, text=large), part("a", 2, text=large), part("a", 3)])]
    assert found == [[1, 2], [3]]


def test_a_part_that_is_enough_is_passed_on_as_it_is_after_what_waits() -> None:
    whole = part("a", *range(ENOUGH_RECORDS))
    first, found = gather([part("a", 1), whole])
    assert values(first) == [1]
    assert found is whole


def test_empty_parts_are_left_out_and_small_ones_wait_in_any_number() -> None:
    found = list(gather(part("a", *([number] if number % 2 else [])) for number in range(2_000)))
    assert [values(each) for each in found] == [[*range(1, 2_000, 2)]]
