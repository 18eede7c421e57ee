"""A distribution of another project that brings a package ``twopc``, as one on PyPI does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import twopc

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with this project's package, as pip unpacks it."""
    shutil.copytree(Path(twopc.__file__).parent, tmp_path / "twopc", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def record(folder: Path, name: str, *files: str) -> None:
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(name=name))
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def imported(folder: Path, module: str) -> str:
    """The last line that the import prints, with ``folder`` before all else on the path."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}; print('imported')"
    called = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return (called.stdout + called.stderr).strip().splitlines()[-1]


def test_a_foreign_distribution_in_the_folder_of_ours_is_named_with_the_way_out(installed: Path) -> None:
    record(installed, "twopc", "twopc/__init__.py", "twopc/stars.py")
    assert imported(installed, "twopc").startswith("ImportError: the distribution 'twopc' 1.2 is not this project's")


def test_it_is_named_where_it_has_replaced_our_first_module_too(installed: Path) -> None:
    record(installed, "twopc", "twopc/__init__.py")
    (installed / "twopc" / "__init__.py").write_text("")
    assert "pip uninstall twopc twopc-core" in imported(installed, "twopc.spark")


def test_our_own_distribution_and_another_of_that_name_elsewhere_are_no_matter(installed: Path) -> None:
    record(installed, "twopc_core", "twopc/__init__.py")
    record(installed, "twopc", "stars/__init__.py")
    assert imported(installed, "twopc") == "imported"
