"""What is published: wheels and sdists of every distribution, and the wheels alone in an environment of their own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.campaigns.plugin.environment import ROOT, Environment
from tests.support.pages import PAGES, installations

PLUGINS = {f"twopc_{plugin.name.replace('-', '_')}": plugin for plugin in sorted((ROOT / "plugins").iterdir())}
SOURCES = {"twopc_core": ROOT, **PLUGINS}
PACKAGES = {"twopc_core": "twopc", **{name: name for name in PLUGINS}}


@pytest.fixture(scope="module")
def uv() -> str:
    """The one that the set-up has pinned."""
    return str(max((ROOT / "build").glob("uv-*/bin/uv")))


@pytest.fixture(scope="module")
def built(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of each, as built from its sdist, and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([uv, "build", "--quiet", "--all-packages", "--out-dir", folder, ROOT], check=True)
    return folder


def wheel_of(name: str, folder: Path) -> Path:
    [wheel] = folder.glob(f"{name}-*.whl")
    return wheel


def metadata_of(name: str, folder: Path) -> Message:
    with zipfile.ZipFile(wheel_of(name, folder)) as wheel:
        [found] = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(found).decode())


def test_an_index_has_nothing_against_any_of_them(built: Path) -> None:
    files = sorted([*built.glob("*.whl"), *built.glob("*.tar.gz")])
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert len(files) == 2 * len(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_wheel_has_the_package_with_its_types_the_licence_and_nothing_else(name: str, built: Path) -> None:
    package = SOURCES[name] / PACKAGES[name]
    sources = {file.relative_to(SOURCES[name]) for file in package.rglob("*") if file.is_file()}
    expected = {str(file) for file in sources if "__pycache__" not in file.parts}
    assert f"{PACKAGES[name]}/py.typed" in expected
    assert {file.suffix for file in sources} <= {".py", ".pyc", ".typed", ".html", ".proto"}
    assert not [file for file in sources if file.name.startswith("test_")]
    with zipfile.ZipFile(wheel_of(name, built)) as wheel:
        info = next(each.split("/")[0] for each in wheel.namelist() if ".dist-info/" in each)
        about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
        assert sorted(wheel.namelist()) == sorted(expected | {f"{info}/{each}" for each in about})
        assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", SOURCES)
def test_the_readme_is_what_an_index_shows(name: str, built: Path) -> None:
    metadata = metadata_of(name, built)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (SOURCES[name] / "README.md").read_text(encoding="utf-8")


def test_an_sdist_has_what_its_wheel_is_built_from_and_gives_the_same_wheel(
    built: Path, uv: str, tmp_path: Path
) -> None:
    subprocess.run([uv, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", tmp_path, ROOT], check=True)
    for name in SOURCES:
        assert wheel_of(name, built).read_bytes() == wheel_of(name, tmp_path).read_bytes()
        [sdist] = built.glob(f"{name}-*.tar.gz")
        with tarfile.open(sdist) as archive:
            top = {member.name.split("/")[1] for member in archive.getmembers()}
        assert top == {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", PACKAGES[name]}


def test_the_extra_all_has_every_other_one(built: Path) -> None:
    wanted = metadata_of("twopc_core", built).get_all("Requires-Dist", [])
    optional = {re.sub(r"extra == '\w+'", "extra == 'all'", each) for each in wanted if "extra == " in each}
    assert optional <= set(wanted)


INSTALLED = sorted({line for page in PAGES for line in installations(page)})


@pytest.mark.parametrize("requirements", INSTALLED)
def test_what_pages_install_comes_from_our_wheels_and_brings_no_foreign_twopc(
    requirements: str, built: Path, uv: str
) -> None:
    """With the index on, where ``twopc`` is another project."""
    resolve = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--find-links", str(built)]
    resolved = subprocess.run(
        [*resolve, "-"], input="\n".join(shlex.split(requirements)), capture_output=True, text=True, check=False
    )
    assert resolved.returncode == 0, resolved.stderr
    ours = [line for line in resolved.stdout.splitlines() if line.startswith("twopc")]
    assert "twopc-core==0.1.0" in ours or ours == ["twopc-kafka-broker==0.1.0"]  # which needs nothing of the project
    assert {line.partition("=")[0].replace("-", "_") for line in ours} <= set(SOURCES)


def test_pip_finds_what_make_wheels_builds_in_a_folder_with_a_blank(uv: str, tmp_path: Path) -> None:
    clone = tmp_path / "my projects" / "twopc"
    for folder in ("twopc", "plugins"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("LICENSE", "Makefile", "README.md", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / file, clone)
    pinned = Path(uv).parents[1]
    (clone / "build").mkdir()
    (clone / "build" / pinned.name).symlink_to(pinned)
    build = ["/bin/sh", "-c", "make --no-print-directory wheels"]
    *_, line = subprocess.check_output(build, cwd=clone, text=True).splitlines()
    download = f"{line}; {pinned}/bin/python -m pip download --no-deps --no-index twopc-core twopc-kafka"
    subprocess.run(["/bin/sh", "-c", download], cwd=tmp_path, check=True)
    assert len([*tmp_path.glob("twopc_*.whl")]) == 2


IMPORTED = """
import json, pathlib, sys
before = set(sys.modules)
import twopc
modules = set(sys.modules) - before
assert pathlib.Path(twopc.__file__).is_relative_to(pathlib.Path().resolve() / "environment"), twopc.__file__
found = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
print(json.dumps(sorted(found - {"zstandard"})))  # pyiceberg brings it, and fsspec imports it where it is there
"""

LOADED = """
import importlib.metadata, twopc.plugins
for found in importlib.metadata.entry_points(group="twopc"):
    print(found.name, twopc.plugins.sink_class(found.name).__module__)
"""


@pytest.fixture(scope="module")
def environment(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """All wheels and the guide's, without any extra."""
    environment = Environment(tmp_path_factory.mktemp("clean"), uv, {}, ("pytest", "pytest-timeout"))
    environment.make()
    return environment


def test_the_core_imports_three_small_packages_and_nothing_else(environment: Environment) -> None:
    assert json.loads(environment.run("-c", IMPORTED)) == ["fsspec", "pluggy", "tenacity", "twopc"]


def test_every_backend_loads_with_what_its_wheel_asks_for(environment: Environment) -> None:
    loaded = [line.split()[0] for line in environment.run("-c", LOADED).splitlines()]
    assert sorted(loaded) == sorted({*(found.name for found in entry_points(group="twopc")), "sqlite"})


def test_sinks_from_wheels_keep_the_contract(environment: Environment) -> None:
    """Those that need no server; ``make prove-plugin`` has them all."""
    suites = ("guide/test_contract.py", "tests/unit/test_memory_sink.py", "tests/sinks/files/test_contract.py")
    environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not S3", *suites)
