"""``docs/internals/architecture.md`` and the tables in docstrings describe the code as it is."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from inspect import signature
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.pages import DOCS, ROOT
from tests.support.sources import GROUP, SOURCES, nodes, tree
from twopc import effects
from twopc.phases import NEXT, Phase

pytestmark = pytest.mark.xdist_group(GROUP)

PAGE = (DOCS / "internals" / "architecture.md").read_text(encoding="utf-8")
SPECIFICATION = (ROOT / "tests/campaigns/model/twopc.tla").read_text(encoding="utf-8")

BACKENDS = (
    *("twopc_kafka", "twopc_files", "twopc_postgres", "twopc_iceberg", "twopc_delta"),
    *("twopc_mysql", "twopc_pravega", "twopc_sql"),
)
CLIENTS = (
    *("confluent_kafka", "deltalake", "grpc", "kafka", "openlineage", "opentelemetry", "prometheus_client", "psycopg"),
    *("pymysql", "sqlalchemy"),
)
ENGINE = ("pyspark", "py4j")
AROUND_THE_CORE = ("twopc.spark", "twopc.cli", "twopc.observers", "twopc.testing")
COORDINATION = (
    *("twopc.coordinator", "twopc.participant", "twopc.phases", "twopc.replay", "twopc.resting"),
    *("twopc.log.commit_log", "twopc.log.entries", "twopc.performer", "twopc.protocol"),
)
IO = ("asyncio", "fsspec", "http", "os", "pathlib", "selectors", "socket", "subprocess", "tempfile", "urllib")
WITHOUT_IO = (
    *("twopc.checkpoint.offsets", "twopc.cli.verdicts", "twopc.deletion_vectors", "twopc.log.batch_identity"),
    *("twopc.log.entries", "twopc.log.factored", "twopc.log.steps", "twopc.loss", "twopc.observers._event_lines"),
    *("twopc.observers._instruments", "twopc.pending", "twopc.phases", "twopc.protocol", "twopc.repetition"),
    *("twopc.sweep",),
    *("twopc_files.outcomes", "twopc_kafka.answers", "twopc_kafka.client.requests"),
    *("twopc_kafka.handles", "twopc_kafka.writers.encoding"),
)


def is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def imports(module: str) -> tuple[str, ...]:
    """What a module imports, wherever in it: modules, and names as ``module.name``."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(of: tuple[str, ...], forbidden: tuple[str, ...], besides: tuple[str, ...] = ()) -> list[str]:
    """Each import of ``forbidden`` in the modules of ``of``, except those of ``besides``."""
    return [
        f"{module} imports {imported}"
        for module in SOURCES
        if is_below(module, of) and not is_below(module, besides)
        for imported in imports(module)
        if is_below(imported, forbidden)
    ]


def test_the_core_imports_no_backend_no_engine_no_client_and_nothing_that_is_around_it() -> None:
    assert offenders(("twopc",), (*BACKENDS, *CLIENTS, *ENGINE, *AROUND_THE_CORE), besides=AROUND_THE_CORE) == []


def test_the_spark_bridge_and_the_expressions_of_a_schema_registry_alone_import_pyspark() -> None:
    assert offenders(("twopc", *BACKENDS), ENGINE, besides=("twopc.spark", "twopc_kafka.registry")) == []


def test_the_command_alone_imports_what_its_extra_installs() -> None:
    assert offenders(("twopc", *BACKENDS), ("click", "rich"), besides=("twopc.cli",)) == []


def test_nothing_outside_its_package_imports_the_command() -> None:
    assert offenders(("twopc", *BACKENDS), ("twopc.cli",), besides=("twopc.cli",)) == []


def test_a_backend_imports_no_coordination_and_no_private_name_of_twopc() -> None:
    assert offenders(BACKENDS, (*COORDINATION, "twopc.spark", "twopc.cli", "twopc.testing")) == []
    assert [
        f"{module} imports {imported}"
        for module in SOURCES
        if is_below(module, BACKENDS)
        for imported in imports(module)
        if is_below(imported, ("twopc",)) and "._" in imported
    ] == []


def test_a_backend_imports_no_other_backend_and_no_development_broker() -> None:
    for backend in BACKENDS:
        others = tuple(other for other in BACKENDS if other != backend)
        assert offenders((backend,), (*others, "twopc_kafka_broker")) == []


def test_the_development_broker_imports_nothing_of_twopc() -> None:
    assert offenders(("twopc_kafka_broker",), ("twopc", *BACKENDS)) == []


def test_a_module_without_io_imports_nothing_that_does_any() -> None:
    assert [module for module in WITHOUT_IO if not is_below(module, tuple(SOURCES))] == [], "which has another name now"
    assert offenders(WITHOUT_IO, (*IO, "kafka.net", "twopc_kafka.client.kafka_python", "confluent_kafka")) == []


BORROWED = {
    "adlfs": "twopc.stores.azure",
    "fsspec": "twopc.stores.fsspec_internals",
    "kafka-python": "twopc_kafka.client.kafka_python",
    "pyiceberg": "twopc_iceberg.pyiceberg_internals",
    "pyspark": "twopc.spark.java",
}
"""Dependency → the one module that uses names of it that it does not document."""

NAMED_SO = re.compile("_exit|_is_owned|_[A-Z]+(_[A-Z]+)*")
"""Public names with an underscore: ``os._exit``, that of a lock for ``threading.Condition``, and librdkafka's codes."""


@cache
def own_names() -> set[str]:
    """Each name that the code defines, as a function, a class, a variable, a parameter or an attribute."""
    found = set()
    for module in SOURCES:
        for node in ast.walk(tree(module)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name)
    return found


def private_names_of_others(module: str) -> set[str]:
    """The names with an underscore that a module uses, and that no module of ours defines."""
    used = {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)} - own_names()
    used |= {node.arg or "" for node in nodes(module) if isinstance(node, ast.keyword)} - own_names()
    used |= {name.rpartition(".")[2] for name in imports(module) if not name.startswith("twopc")}
    return {name for name in used if re.match("_[^_]", name) and not NAMED_SO.fullmatch(name)}


def test_private_names_of_a_dependency_stand_in_one_module_that_says_in_which_version_they_were_read() -> None:
    assert {module for module in SOURCES if private_names_of_others(module)} == {*BORROWED.values()}
    for module in BORROWED.values():
        assert " read in " in (ast.get_docstring(tree(module)) or ""), module


REPLACED = {
    "catalogs.TransactionalCatalog": ("_config_headers", "_create_session"),
    "glue.KeptGlueCatalog": ("_convert_glue_to_iceberg", "_get_glue_table", "_update_glue_table"),
    "hive.KeptHiveCatalog": ("_convert_hive_into_iceberg", "_create_lock_request", "_wait_for_lock"),
    "manifests.ManifestWriter": ("_meta", "_with_partition"),
}
"""The undocumented methods of pyiceberg that a class of ``twopc_iceberg`` replaces."""


@pytest.mark.parametrize("replacing", REPLACED)
def test_pyiceberg_still_has_the_methods_that_a_class_replaces(replacing: str) -> None:
    """Under another name, pyiceberg would not call ours, and say nothing."""
    own = pkgutil.resolve_name("twopc_iceberg." + replacing.replace(".", ":"))
    for name in REPLACED[replacing]:
        theirs, *_ = (each for each in own.__mro__ if each.__module__.startswith("pyiceberg") and name in vars(each))
        if callable(method := vars(own)[name]):
            assert [*signature(method).parameters] == [*signature(vars(theirs)[name]).parameters], name


@pytest.mark.parametrize("dependency", BORROWED)
def test_a_dependency_whose_private_names_are_used_has_an_upper_bound(dependency: str) -> None:
    files = (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
    released = "".join(file.read_text(encoding="utf-8").partition("[dependency-groups]")[0] for file in files)
    bounds = re.findall(rf'"{dependency}(?:\[.*?\])?([<>=].*?)"', released)
    assert bounds
    assert not [each for each in bounds if "9999" in SpecifierSet(each)]


COMMITTING = ("commit", "commit_many", "commit_batch", "commit_together")


def committing_places() -> Iterator[str]:
    """Where the core, outside the contract, refers to a method that commits: class, function and file."""
    for module, source in SOURCES.items():
        if is_below(module, ("twopc",)) and not is_below(module, ("twopc.testing", "twopc.sink")):
            for scope, node in _scoped(tree(module), ()):
                if isinstance(node, ast.Attribute) and node.attr in COMMITTING:
                    yield f"`{'.'.join(scope)}` in `{source.relative_to(ROOT)}`"


def _scoped(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield scope, child
        inner = (child.name,) if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ()
        yield from _scoped(child, (*scope, *inner))


def test_a_sink_is_committed_in_exactly_the_places_that_the_page_names() -> None:
    named = PAGE.partition("in exactly these places")[2].partition("\n2. ")[0]
    assert sorted(re.findall(r"(`[\w.]+` in `[\w/.]+`)", named)) == sorted(set(committing_places()))


def test_the_names_that_a_batch_passes_through_exist() -> None:
    steps = PAGE.partition("## A batch in the code")[2].partition("\n## ")[0]
    names = re.findall(r"`(twopc[\w.]*\.\w+)`", steps)
    assert len(names) > 10
    for name in names:
        assert callable(pkgutil.resolve_name(name)), name


def test_the_page_says_of_every_effect_which_actions_of_the_specification_it_takes_or_why_none() -> None:
    rows = PAGE.partition("### The specification's actions")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| (.*?) \|$", rows, re.MULTILINE)
    named = [name for effect, _ in cells for name in re.findall(r"`(\w+)`", effect)]
    assert sorted(named) == sorted(name for name, value in vars(effects).items() if is_effect(value))
    actions = {name for _, of_effect in cells for name in re.findall(r"`(\w+)`", of_effect)}
    specified = re.findall(r"^(\w+)\(.*?\) ==", SPECIFICATION, re.MULTILINE)
    assert actions <= set(specified)


def is_effect(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and value.__module__ == effects.__name__


def contents(folder: Path) -> set[str]:
    """The modules and packages in a folder, packages with a slash."""
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return modules | {f"{path.name}/" for path in folder.iterdir() if any(path.glob("**/*.py"))}


def code_map() -> dict[str, set[str]]:
    """The tables of the page's code map: the modules that each folder's table lists."""
    sections = re.findall(r"^### `([\w/-]+)/`\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    return {
        folder: {
            name for row in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) for name in re.findall("`(.*?)`", row)
        }
        for folder, text in sections
    }


def test_the_code_map_has_every_package() -> None:
    packages = {str(source.parent.relative_to(ROOT)) for source in SOURCES.values()}
    assert set(code_map()) == {*packages, "tests"} - {"twopc/cli/commands"}  # listed in the package's docstring


def test_the_code_map_lists_exactly_the_modules_of_a_folder() -> None:
    assert code_map() == {folder: contents(ROOT / folder) - {"conftest"} for folder in code_map()}


def test_the_picture_of_the_phases_shows_the_table_of_phases() -> None:
    arrows = ["    [*] --> closed"]
    arrows += [
        f"    {phase.value} --> {following.value}".replace("pre-committing", "pre_committing")
        for phase in Phase
        for following in sorted(NEXT[phase], key=lambda phase: phase.value)
    ]
    assert "\n".join(["stateDiagram-v2", *arrows]) in PAGE


WAITS = ("wait", "join", "acquire", "result")
POOLS = ("ThreadPoolExecutor", "ProcessPoolExecutor", "ThreadPool", "Pool")
"""Their ``map`` and the end of their block wait for every thread, and the interpreter does before it ends."""


def waits_without_end(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
            return name in WAITS
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name in POOLS
    return False


def test_a_driver_and_a_command_wait_in_steps() -> None:
    """Python does not see a Ctrl-C that comes just before a wait without a timeout begins, until that wait ends."""
    modules = [name for name in SOURCES if is_below(name, ("twopc",)) and not is_below(name, ("twopc.testing",))]
    found = [(module, ast.unparse(node)) for module in modules for node in nodes(module) if waits_without_end(node)]
    assert found == []
