"""The plugin speaks Kafka's protocol in one place: each request is built, and each error code has its meaning, once.
kafka-python's private names stand in one module, and no version is installed in which nobody has read them."""

import ast
import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from tests.support.pages import ROOT
from twopc_kafka.client import kafka_python

PLUGIN = ROOT / "plugins" / "kafka" / "twopc_kafka"
FENCE = "client/kafka_python.py"
SOURCES = {path.relative_to(PLUGIN).as_posix(): path.read_text(encoding="utf-8") for path in PLUGIN.rglob("*.py")}
DOCUMENTED = re.compile(r"kafka(\.errors|\.future|\.protocol(?!\.schemas)\b.*)?$")


def test_every_request_is_built_in_one_module() -> None:
    built = defaultdict(set)
    for source, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name == "Produce" or name.endswith("Request"):
                    built[name].add(source)
    assert "MetadataRequest" in built
    assert {name: where for name, where in built.items() if where != {"client/requests.py"}} == {}


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(name)):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)


def test_one_module_uses_the_private_names_of_kafka_python_and_lists_them() -> None:
    for source, text in SOURCES.items():
        private = [name for name in imported(text) if name.split(".")[0] == "kafka" and not DOCUMENTED.match(name)]
        names = re.findall(r"(?:manager|connection|transport|reauthenticator|Manager|_net)\.(_[a-z]\w+)", text)
        assert source == FENCE or private == names == [], source
        unlisted = [name for name in names if f"``{name}``" not in (kafka_python.__doc__ or "")]
        assert source != FENCE or (names and not unlisted)


def test_the_bounds_admit_the_version_that_was_read_and_no_later_minor_version() -> None:
    [bounds] = re.findall('"kafka-python(.*)"', (PLUGIN.parent / "pyproject.toml").read_text(encoding="utf-8"))
    major, minor, _ = map(int, kafka_python.READ_IN.split("."))
    admitted = SpecifierSet(bounds)
    assert kafka_python.READ_IN in admitted
    assert f"{major}.{minor + 1}" not in admitted
    assert importlib.metadata.version("kafka-python") in admitted
