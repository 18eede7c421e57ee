"""The installed backends, as the command lists them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest


def install(folder: Path, distribution: str, backend: str, module: str, code: str = "") -> None:
    """A distribution with one backend, where Python finds it."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{distribution}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[twopc]\n{backend} = {module}\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python finds distributions."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_every_backend_is_listed_with_its_distribution_version_and_module(look: Any) -> None:
    done = look("backends", "--json")
    assert done.code == 0
    listed = {row["name"]: row for row in done.json["backends"]}
    assert set(listed) == {"delta", "files", "iceberg", "kafka", "kafka-offsets", "mysql", "postgres", "pravega", "sql"}
    assert listed["files"] == {
        "name": "files",
        "distribution": "twopc-files",
        "version": version("twopc-files"),
        "module": "twopc_files.plugin",
        "reason": None,
    }
    table = look("backends")
    assert all(name in table.out for name in listed)
    assert "Not loaded" not in table.out


def test_a_backend_that_cant_be_loaded_is_listed_with_the_reason(look: Any, place: Path) -> None:
    install(place, "twopc-broken", "broken", "broken_backend", "import a_client_that_is_not_installed\n")
    done = look("backends", "--json")
    assert done.code == 3
    (broken,) = [row for row in done.json["backends"] if row["reason"]]
    assert (broken["name"], broken["distribution"], broken["version"]) == ("broken", "twopc-broken", "1.2")
    assert "No module named 'a_client_that_is_not_installed'" in broken["reason"]
    table = look("backends")
    assert "Not loaded" in table.out
    assert "files" in table.out


def test_two_backends_of_one_name_are_both_listed_as_not_loaded(look: Any, place: Path) -> None:
    install(place, "twopc-other", "postgres", "other_postgres")
    rows = [row for row in look("backends", "--json").json["backends"] if row["name"] == "postgres"]
    assert sorted(row["distribution"] for row in rows) == ["twopc-other", "twopc-postgres"]
    assert all("two backends are named 'postgres'" in row["reason"] for row in rows)
    assert {row["version"] for row in rows} == {"1.2", version("twopc-postgres")}
