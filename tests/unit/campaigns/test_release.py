"""What ``make release-check`` finds wrong."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.release import campaign, contents, installing
from tests.campaigns.release.licenses import NAMED, Licensed, faults, is_permissive
from tests.campaigns.release.surface import Changes, compared, require_tags
from tests.campaigns.release.surface import faults as surface_faults
from tests.support.distributions import PACKAGES, SOURCES, CommandFailed, build, call, wheel_of
from tests.support.environments import uv

NEEDS_GIT = pytest.mark.skipif(not shutil.which("git"), reason="install git, which a release is checked by")


@pytest.mark.parametrize(
    "license_",
    [
        *("MIT", "MIT License", "Apache-2.0", "Apache Software License", "Apache 2.0", "BSD-3-Clause AND MIT"),
        *("(MIT OR GPL-2.0-only) AND 0BSD", "GPL-3.0-only OR Apache-2.0"),
        *("Python Software Foundation License", "ISC License (ISCL)"),
    ],
)
def test_a_license_that_leaves_everything_free_is_permissive(license_: str) -> None:
    assert is_permissive(license_)


@pytest.mark.parametrize(
    "license_",
    [
        *("LGPL-3.0-only", "MPL-2.0 AND MIT", "GNU General Public License v3 (GPLv3)"),
        *("Mozilla Public License 2.0 (MPL 2.0)", "unknown", "", "AGPL-3.0-or-later", "BSL-1.1", "MITRE's own"),
    ],
)
def test_any_other_license_is_not(license_: str) -> None:
    assert not is_permissive(license_)


def test_a_license_that_is_not_permissive_is_wrong_unless_it_is_named() -> None:
    named = [Licensed(name, "1", "MPL-2.0", is_permissive=False) for name in NAMED]
    assert [*faults(named)] == []
    [fault] = faults([*named, Licensed("other", "1", "GPL-3.0-only", is_permissive=False)])
    assert fault.startswith("the license of other is GPL-3.0-only, which is not known as permissive")


def test_a_name_without_need_is_wrong() -> None:
    named = [Licensed(name, "1", "MPL-2.0", is_permissive=False) for name in NAMED]
    [fault] = faults(named[1:])
    assert fault.startswith(named[0].name)


BEFORE = (
    "twopc.f(a: int) -> None",
    "class twopc.E(Exception)",
    "option x mode: `a`, `b` = `a`",
    "command twopc status: [--json] log",
)
SAME = BEFORE[1:]

NOTHING, REMOVED = compared("v1.2.3", BEFORE, BEFORE), compared("v1.2.3", BEFORE, SAME)
CHANGED = compared("v1.2.3", BEFORE, [*SAME, "twopc.f(a: int, *, b: int = 0) -> None"])
ADDED = compared("v1.2.3", BEFORE, [*BEFORE, "metric twopc_x_total: counter of owner"])


def test_surfaces_are_compared_name_by_name() -> None:
    assert (NOTHING.removed, NOTHING.changed, NOTHING.added) == ([], [], [])
    assert (REMOVED.removed, REMOVED.changed, REMOVED.added) == ([BEFORE[0]], [], [])
    assert CHANGED.changed == [(BEFORE[0], "twopc.f(a: int, *, b: int = 0) -> None")]
    assert ADDED.added == ["metric twopc_x_total: counter of owner"]
    default = compared("v1.2.3", BEFORE, [*BEFORE[:2], "option x mode: `a`, `b` = `b`", BEFORE[3]])
    assert [before for before, _ in default.changed] == [BEFORE[2]]


@pytest.mark.parametrize(
    ("tag", "version", "allowed"),
    [
        ("v1.2.3", "1.2.3", [NOTHING]),
        ("v1.2.3", "1.2.4", [NOTHING]),
        ("v1.2.3", "1.3.0", [NOTHING, CHANGED, ADDED]),
        ("v1.2.3", "2.0.0", [NOTHING, CHANGED, ADDED, REMOVED]),
        ("v0.2.3", "0.2.4", [NOTHING]),
        ("v0.2.3", "0.3.0", [NOTHING, CHANGED, ADDED, REMOVED]),
        ("v0.2.3", "1.0.0", [NOTHING, CHANGED, ADDED, REMOVED]),
        (None, "1.3.0", [NOTHING]),
    ],
)
def test_a_version_allows_the_changes_of_the_policy_and_no_others(
    tag: str | None, version: str, allowed: list[Changes]
) -> None:
    for changes in (NOTHING, CHANGED, ADDED, REMOVED):
        found = [*surface_faults(changes, tag, version)]
        assert (found == []) is (changes in allowed), found
        assert all("docs/versions.md" in fault for fault in found)


def test_a_version_before_the_last_tag_is_wrong() -> None:
    assert [*surface_faults(NOTHING, "v1.2.3", "1.2.2")] == ["the version is 1.2.2, and 1.2.3 is released already"]


@NEEDS_GIT
def test_a_clone_that_may_lack_tags_is_wrong(tmp_path: Path) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    call("git", "init", "--quiet", whole)
    commit = ("-c", "user.name=x", "-c", "user.email=x@example", "commit", "--quiet", "--allow-empty", "--message=x")
    for _ in range(2):
        call("git", *commit, folder=whole)
    call("git", "clone", "--quiet", "--depth", "1", whole.as_uri(), shallow)
    assert [*require_tags(whole)] == []
    [fault] = require_tags(shallow)
    assert fault.startswith("this clone is shallow")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(uv(), folder, "--package", "twopc-sql")
    return folder


def changed(built: Path, folder: Path, leave_out: str, more: dict[str, str]) -> Path:
    """A folder with the wheel of ``twopc_sql`` without a file, or with others."""
    shutil.copytree(built, folder, dirs_exist_ok=True)
    wheel = wheel_of("twopc_sql", folder)
    with zipfile.ZipFile(wheel_of("twopc_sql", built)) as before, zipfile.ZipFile(wheel, "w") as after:
        for name in before.namelist():
            if not name.endswith(leave_out or "nothing"):
                after.writestr(name, more.get(name.rpartition("/")[2], before.read(name)))
        for name, text in more.items():
            if "/" in name:
                after.writestr(name, text)
    return folder


@pytest.mark.long
def test_a_correct_wheel_has_no_fault(built: Path) -> None:
    checks = (contents.of_wheel, contents.of_metadata, contents.of_requirements, contents.of_sdist)
    assert [fault for check in checks for fault in check("twopc_sql", built)] == []


@pytest.mark.variants
@pytest.mark.parametrize(
    ("leave_out", "more", "fault"),
    [
        ("licenses/LICENSE", {}, "lacks twopc_sql-"),
        ("", {"LICENSE": "none"}, "the license in the wheel is not the project's"),
        ("sink.py", {}, "lacks twopc_sql/sink.py"),
        ("", {"tests/test_sink.py": ""}, "tests/test_sink.py does not belong into the wheel"),
    ],
)
def test_a_wheel_with_a_fault_is_described(
    built: Path, tmp_path: Path, leave_out: str, more: dict[str, str], fault: str
) -> None:
    [found] = contents.of_wheel("twopc_sql", changed(built, tmp_path, leave_out, more))
    assert fault in found


def test_metadata_without_license_classifiers_and_readme_is_described(built: Path, tmp_path: Path) -> None:
    bare = {"METADATA": "Metadata-Version: 2.4\nName: twopc-sql\nClassifier: License :: OSI Approved\n\nnothing"}
    found = " ".join(contents.of_metadata("twopc_sql", changed(built, tmp_path, "", bare)))
    for fault in ("does not name Apache-2.0", "'Typing :: Typed' is missing", "status", "superseded", "not the README"):
        assert fault in found


def requiring(built: Path, folder: Path, *requirements: str) -> Path:
    """A folder with the wheel of ``twopc_sql`` 0.1.0 and these requirements."""
    lines = [
        "Metadata-Version: 2.4",
        "Name: twopc-sql",
        "Version: 0.1.0",
        *(f"Requires-Dist: {r}" for r in requirements),
    ]
    return changed(built, folder, "", {"METADATA": "\n".join(lines)})


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [
        ("pyarrow", "pyarrow has no least version"),
        ("pyarrow<30", "pyarrow<30 has no least version"),
        ("pyarrow!=19; extra == 'x'", "has no least version"),
        ("twopc-core>=0.1", "does not ask for the minor version 0.1 alone"),
        ("twopc-core<0.3,>=0.2", "does not ask for the minor version 0.1 alone"),
    ],
)
def test_a_requirement_without_bounds_is_described(built: Path, tmp_path: Path, requirement: str, fault: str) -> None:
    fine = ("twopc-core<0.2,>=0.1", "twopc-sql[all]", "numpy>=1.26", "deltalake==1.6.6; extra == 'delta'")
    [found] = contents.of_requirements("twopc_sql", requiring(built, tmp_path, *fine, requirement))
    assert found.endswith(fault)


def test_metadata_for_other_versions_of_python_is_described(built: Path, tmp_path: Path) -> None:
    found = [*contents.of_metadata("twopc_sql", requiring(built, tmp_path))]
    assert "twopc_sql: the metadata asks for Python None, not >=3.10" in found


@NEEDS_GIT
def test_a_file_that_no_commit_has_is_described() -> None:
    package = SOURCES["twopc_core"] / PACKAGES["twopc_core"]
    with tempfile.NamedTemporaryFile(dir=package, prefix="scratch_", suffix=".py") as scratch:
        found = [*contents.of_sources()]
    assert f"twopc/{Path(scratch.name).name} is not in git, and is built in" in found


def test_an_entry_point_that_does_not_load_is_described(tmp_path: Path) -> None:
    info = tmp_path / "fake-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: fake\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[twopc]\nsql = fake.gone\n")
    (tmp_path / "fake.py").write_text("")
    look = [sys.executable, "-c", installing._IMPORTED, "fake", "fake"]
    looked = subprocess.run(look, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert looked.returncode == 1
    assert "its entry point 'sql' in 'twopc' can't be loaded: ModuleNotFoundError" in looked.stderr


def test_a_step_that_fails_is_a_sentence_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: BaseException) -> Any:
        raise error

    steps = [
        ("build", lambda: failing(CommandFailed("uv build failed with exit code 2"))),
        ("look", lambda: failing(KeyError("LICENSE"))),
        ("compare", lambda: ["a name is gone"]),
    ]
    monkeypatch.setattr(campaign.Check, "steps", lambda self: steps)
    assert campaign.main(["--folder", str(tmp_path / "release")]) == 1
    told = capsys.readouterr().out
    assert "wrong: could not build: uv build failed with exit code 2" in told
    assert "wrong: could not look: KeyError('LICENSE')" in told
    assert "FAILED: " in told.splitlines()[-1]
    assert "a name is gone" in (tmp_path / "release" / "report.json").read_text()
