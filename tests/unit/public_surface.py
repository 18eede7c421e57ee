"""What users rely on, of every distribution, as text: names to import and call with their signatures, commands, options
with their values and defaults, and metrics. One line for each.

``python -m tests.unit.public_surface > tests/unit/public_surface.txt`` after a change that is meant.
``docs/versions.md`` tells which release may make it.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click

from tests.support.pages import DOCS
from twopc.cli.commands import cli
from twopc.observers._instruments import INSTRUMENTS
from twopc.options import Option

PUBLIC = (
    "twopc",
    "twopc.datasets",
    "twopc.stores.disk",
    "twopc.stores.errors",
    "twopc.stores.folder",
    "twopc.stores.remote",
    "twopc.errors",
    "twopc.events",
    "twopc.hookspecs",
    "twopc.log.store.LogStore",
    "twopc.observers.json_lines",
    "twopc.observers.openlineage",
    "twopc.observers.opentelemetry",
    "twopc.observers.prometheus",
    "twopc.options",
    "twopc.spark",
    "twopc.testing",
    "twopc_delta",
    "twopc_files",
    "twopc_kafka",
    "twopc_kafka_broker",
    "twopc_postgres",
    "twopc_iceberg",
    "twopc_mysql",
    "twopc_pravega",
    "twopc_sql",
)
"""What the documentation tells to import, or to import from."""


class _Verbatim:
    """An annotation as it is written, which ``inspect`` would put into quotes."""

    def __init__(self, written: str) -> None:
        self._written = written

    def __repr__(self) -> str:
        return self._written


def lines() -> Iterator[str]:
    """The surface, sorted within each module."""
    for name in PUBLIC:
        value = pkgutil.resolve_name(name)
        if isinstance(value, ModuleType):
            for public in sorted(_names(value)):
                yield from _described(f"{name}.{public}", getattr(value, public))
        else:
            yield from _described(name, value)
    yield from _commands("command twopc", cli)
    yield from _options()
    yield from _metrics()


def _commands(name: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in sorted(command.list_commands(context)):
            of_group = command.get_command(context, each)
            assert of_group is not None
            yield from _commands(f"{name} {each}", of_group)
    else:
        yield " ".join([f"{name}:", *sorted(map(_parameter, command.params))])


def _options() -> Iterator[str]:
    """The options of every section of the reference of options, which names the tuples that declare them."""
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for section in page.split("\n### ")[1:]:
        owner = " ".join(re.findall(r"[\w.-]+", section.partition("\n")[0]))
        named = re.findall(r"^<!-- ([\w.]+\.[A-Z_]+) -->$", section, re.MULTILINE)
        options = [option for where in named for option in pkgutil.resolve_name(where)]
        described = dict(map(_option, reversed(options)))  # of two by one name, the first
        yield from (f"option {owner} {name}: {described[name]}" for name in sorted(described))


def _option(option: Option | str) -> tuple[str, str]:
    """The name of an option, and its values and default. Some have only a name: a client checks their values."""
    if isinstance(option, str):
        return option, "as its client has it"
    return option.name, f"{option.kind.values} {'needed' if option.needed else f'= {option.default_cell or None}'}"


def _metrics() -> Iterator[str]:
    """The metrics of Prometheus, and the instruments of OpenTelemetry."""
    for metric in sorted(INSTRUMENTS, key=lambda each: each.prometheus):
        yield f"metric twopc_{metric.prometheus}: {metric.kind.value} of {', '.join(metric.labels)}"
    for metric in sorted(INSTRUMENTS, key=lambda each: each.opentelemetry):
        yield f"instrument twopc.{metric.opentelemetry}: {metric.kind.value} in {metric.unit}"


def _names(module: ModuleType) -> list[str]:
    """``__all__``, or what a module without one defines itself."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)}){_made_by(value)}"
        for member in sorted({member for kind in _with_private_bases(value) for member in vars(kind)}):
            if not member.startswith(("_", "test_")):
                yield from _member(f"{name}.{member}", inspect.getattr_static(value, member))
    elif inspect.isroutine(value):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _with_private_bases(kind: type) -> Iterator[type]:
    """The class, and its bases that lie in a private module: to a user, what they define is the class's own."""
    yield kind
    yield from (base for base in kind.__bases__ if base.__module__.startswith("twopc._"))


def _made_by(kind: type) -> str:
    """How it is made, unless as its base is, or as an interface never."""
    return f" {_signature(kind)}" if "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False) else ""


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield f"{name}: property{_signature(value.fget)}"
    elif isinstance(value, staticmethod | classmethod):
        yield f"{name}{_signature(value.__func__)}"
    elif inspect.isroutine(value):
        yield f"{name}{_signature(value)}"
    elif not inspect.isdatadescriptor(value):  # a field, which stands in the signature
        yield name


def _signature(value: Any) -> str:
    written = inspect.signature(value)
    parameters = [each.replace(annotation=_verbatim(each.annotation)) for each in written.parameters.values()]
    text = str(written.replace(parameters=parameters, return_annotation=_verbatim(written.return_annotation)))
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # where a default lies in memory


def _verbatim(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation


def _parameter(parameter: click.Parameter) -> str:
    name = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return name if parameter.required else f"[{name}]"


if __name__ == "__main__":
    for line in lines():
        print(line)  # noqa: T201  # into the file
