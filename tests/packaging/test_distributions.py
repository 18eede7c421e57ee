"""What is published: wheels and sdists of every distribution, and the wheels alone in an environment of their own."""

import json
import re
import shlex
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.campaigns.plugin.environment import Environment
from tests.campaigns.release import contents
from tests.support.distributions import SOURCES, build, call, metadata_of
from tests.support.pages import PAGES, ROOT, installations


@pytest.fixture(scope="module")
def uv() -> str:
    """The one that the set-up has pinned."""
    return str(max((ROOT / "build").glob("uv-*/bin/uv")))


@pytest.fixture(scope="module")
def built(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of each, as built from its sdist, and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    build(uv, folder, "--all-packages")
    return folder


@pytest.mark.long
def test_an_index_has_nothing_against_any_of_them(built: Path) -> None:
    assert [*contents.of_index(built)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", SOURCES)
def test_a_wheel_has_the_package_with_its_types_the_license_and_nothing_else(name: str, built: Path) -> None:
    assert [*contents.of_wheel(name, built)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", SOURCES)
def test_the_metadata_has_the_license_the_classifiers_and_the_readme(name: str, built: Path) -> None:
    assert [*contents.of_metadata(name, built)] == []


@pytest.mark.long
def test_an_sdist_has_what_its_wheel_is_built_from_and_gives_the_same_wheel(
    built: Path, uv: str, tmp_path: Path
) -> None:
    build(uv, tmp_path, "--all-packages", "--wheel")
    assert [*contents.differences(built, tmp_path)] == []
    assert [fault for name in SOURCES for fault in contents.of_sdist(name, built)] == []


def test_the_extra_all_has_every_other_one() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n[")[0]
    [listed] = re.findall(r'^all = \["twopc-core\[(.*)\]"\]$', extras, re.MULTILINE)
    assert {*listed.split(",")} == {*re.findall(r"^([a-z0-9-]+) = \[", extras, re.MULTILINE)} - {"all"}


@pytest.mark.parametrize("user", [("twopc-kafka-broker",), ("twopc-kafka", "--extra", "dev")])
def test_the_development_broker_brings_no_pytest(user: tuple[str, ...], uv: str) -> None:
    export = (uv, "export", "--quiet", "--locked", "--offline", "--no-default-groups", "--no-hashes", "--no-annotate")
    required = call(*export, "--package", *user)
    names = re.findall("^[a-z][a-z0-9.-]*", required, re.MULTILINE)
    assert "jgo" in names
    assert "pytest" not in names


@pytest.mark.long
def test_the_extra_all_installs_what_every_other_one_does(built: Path) -> None:
    wanted = metadata_of("twopc_core", built).get_all("Requires-Dist", [])
    optional = {re.sub(r"extra == '\w+'", "extra == 'all'", each) for each in wanted if "extra == " in each}
    assert optional <= set(wanted)


INSTALLED = sorted({line for page in PAGES for line in installations(page)})


@pytest.mark.long
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


@pytest.mark.long
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
for name in twopc.__all__:
    getattr(twopc, name)
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
    environment = Environment(
        tmp_path_factory.mktemp("clean"), uv, {}, ("duckdb", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
    )
    environment.make()
    return environment


@pytest.mark.long
def test_the_core_imports_pluggy_and_nothing_else(environment: Environment) -> None:
    assert json.loads(environment.run("-c", IMPORTED)) == ["pluggy", "twopc"]


@pytest.mark.long
def test_every_backend_loads_with_what_its_wheel_asks_for(environment: Environment) -> None:
    loaded = [line.split()[0] for line in environment.run("-c", LOADED).splitlines()]
    assert sorted(loaded) == sorted({*(found.name for found in entry_points(group="twopc")), "sqlite"})


@pytest.mark.long
def test_sinks_from_wheels_keep_the_contract(environment: Environment) -> None:
    """Those that need no server; ``make prove-plugin`` has them all."""
    suites = ("guide/test_contract.py", "tests/unit/test_memory_sink.py", "tests/sinks/files/test_contract.py")
    environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not (S3 or Azure or Gcs)", *suites)
