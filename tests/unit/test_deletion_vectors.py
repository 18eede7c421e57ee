"""Deletion vectors: what Delta and Iceberg write, and what is refused of it."""

import pytest

from twopc.deletion_vectors import bitmap_of, framed, unframed, vector_of

WRITTEN = framed(vector_of(b"rows"))


def test_a_vector_is_written_as_the_specifications_have_it_and_read_back() -> None:
    written = framed(vector_of(b"rows"))
    assert written == b"\x00\x00\x00\x08\xd1\xd3\x39\x64rows\x51\xb6\x1c\x66"
    assert bitmap_of(unframed(written)) == b"rows"


@pytest.mark.parametrize(
    "content", [b"", WRITTEN[:-1], WRITTEN + b"\0", WRITTEN.replace(b"rows", b"rowz"), b"\1" + WRITTEN[1:]]
)
def test_a_vector_that_is_not_as_it_was_written_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="cut short, or its checksum is wrong"):
        unframed(content)


def test_a_vector_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown format"):
        bitmap_of(b"rows")
