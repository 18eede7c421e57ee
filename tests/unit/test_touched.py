"""Which tests a change touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.touched import modules, touched


def those_of(*changed: str) -> set[str]:
    return {path.name for path in touched(modules(), map(Path, changed))}


@pytest.mark.long
def test_a_test_is_touched_by_what_it_imports_and_by_what_that_imports() -> None:
    assert "test_touched.py" in those_of("tests/support/touched.py")
    assert "test_touched.py" in those_of("tests/support/pages.py")
    assert "test_touched.py" not in those_of("twopc/retry.py")


def test_the_tests_of_a_folder_are_touched_by_its_fixtures() -> None:
    assert "test_touched.py" not in those_of("tests/sinks/delta/conftest.py")
    assert "test_commit.py" in those_of("tests/sinks/delta/conftest.py")


def test_a_backend_touches_its_own_tests_and_not_those_of_others() -> None:
    found = those_of("plugins/delta/twopc_delta/writer.py")
    assert "test_receipts.py" in found
    assert "test_upsert.py" not in found
