"""Where a value that can't be held stands, however deeply nested."""

import pyarrow as pa
import pytest

from tests.support.typed_records import unchecked_text
from twopc.errors import RecordRefused
from twopc.refusals import KEY_TWICE, NOT_UTF8, checker

TEXTS = unchecked_text(b"a", b"\xff")
NUMBERS = pa.array([1, 2])


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (TEXTS, "p"),
        (pa.StructArray.from_arrays([NUMBERS, TEXTS], ["a", "b"]), "p.b"),
        (pa.ListArray.from_arrays([0, 1, 2], TEXTS), "p.element"),
        (pa.MapArray.from_arrays([0, 1, 2], TEXTS, NUMBERS), "p.key"),
        (pa.MapArray.from_arrays([0, 1, 2], NUMBERS, TEXTS), "p.value"),
    ],
)
def test_a_refused_value_is_named_by_its_path(values: pa.Array, column: str) -> None:
    batch = pa.record_batch({"p": values})
    with pytest.raises(RecordRefused) as refused:
        checker(batch.schema, [NOT_UTF8])(batch)
    assert (refused.value.record, refused.value.column) == (1, column)


@pytest.mark.parametrize(
    "keys",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "a"])),
        pa.StructArray.from_arrays([pa.array(["a", "a"])], ["k"]),
    ],
    ids=["of a dictionary that has it twice", "structs"],
)
def test_a_key_that_comes_twice_is_found_whatever_its_layout(keys: pa.Array) -> None:
    once, twice = (pa.record_batch({"p": pa.MapArray.from_arrays(at, keys, NUMBERS)}) for at in ([0, 1, 2], [0, 2]))
    checker(once.schema, [KEY_TWICE])(once)
    with pytest.raises(RecordRefused, match="a key twice"):
        checker(twice.schema, [KEY_TWICE])(twice)
