"""The pages of the repository have the options of the code."""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.pages import DOCS, ROOT, site_script
from twopc.options import Option
from twopc.spark import Output, foreach_batch
from twopc.spark.data_source import options as source_options
from twopc_kafka import options as kafka_options

BACKENDS = ("kafka", "files", "postgres", "iceberg", "delta", "mysql", "pravega", "sql")

PAGES = [(ROOT / f"plugins/{name}/README.md", import_module(f"twopc_{name}.options").OPTIONS) for name in BACKENDS]


@pytest.mark.parametrize(("page", "options"), [*PAGES, (DOCS / "other-ways.md", source_options.OPTIONS)])
def test_a_page_has_the_options_that_the_code_has(page: Path, options: tuple[Option, ...]) -> None:
    table = site_script("tables").options_table
    assert table(options) in page.read_text(encoding="utf-8"), f"{page} must have this table:\n{table(options)}"


def test_every_default_of_the_kafka_sink_is_documented() -> None:
    assert {*kafka_options.DEFAULTS} <= {option.name for option in kafka_options.OPTIONS if option.default_cell}


@pytest.mark.parametrize("described", [foreach_batch, Output])
def test_the_page_on_spark_has_each_parameter_with_its_default(described: Callable[..., object]) -> None:
    page = (DOCS / "spark.md").read_text(encoding="utf-8")
    section = page.partition(f"\n`{described.__name__}` takes:\n")[2].lstrip().partition("\n\n")[0]
    parameters = inspect.signature(described).parameters.values()
    defaults = {each.name: "" if each.default is each.empty else f"`{each.default!r}`" for each in parameters}
    assert {name: text.strip() for name, text in re.findall(r"^\| `(\w+)` \|(.*?)\| ", section, re.MULTILINE)} == {
        name: default.replace(".0`", "`") for name, default in defaults.items()
    }
