"""Which tests a change touches."""

from pathlib import Path

import pytest

from tests.support import touched

PROJECT = {
    "twopc/retry.py": "",
    "plugins/delta/twopc_delta/writer.py": "from twopc import retry",
    "tests/support/pages.py": "",
    "tests/support/answers.py": "import tests.support.pages",
    "tests/sinks/delta/conftest.py": "",
    "tests/sinks/delta/test_commit.py": "",
    "tests/sinks/delta/test_receipts.py": "def test_it(): from twopc_delta.writer import Writer",
    "tests/sinks/sql/test_upsert.py": "import twopc_sql",
    "tests/unit/test_answers.py": "from tests.support import answers",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    touched._imported.cache_clear()


def those_of(changed: str) -> set[str]:
    found = touched.touched(touched.named(map(Path, PROJECT)), [Path(changed)])
    return {path.name for path in found if path.name.startswith("test_")}


def test_a_test_is_touched_by_what_it_imports_and_by_what_that_imports() -> None:
    assert those_of("tests/support/answers.py") == {"test_answers.py"}
    assert those_of("tests/support/pages.py") == {"test_answers.py"}


def test_the_tests_of_a_folder_are_touched_by_its_fixtures() -> None:
    assert those_of("tests/sinks/delta/conftest.py") == {"test_commit.py", "test_receipts.py"}


def test_a_backend_touches_its_own_tests_and_not_those_of_others() -> None:
    assert those_of("plugins/delta/twopc_delta/writer.py") == {"test_receipts.py"}
    assert those_of("twopc/retry.py") == {"test_receipts.py"}


def test_a_module_of_a_distribution_has_the_name_by_which_it_is_imported() -> None:
    assert touched.named([Path("plugins/delta/twopc_delta/__init__.py")]).keys() == {"twopc_delta"}
