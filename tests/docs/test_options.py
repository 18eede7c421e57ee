"""The pages of the repository have the options of the code."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pages import DOCS, ROOT, site_script
from twopc.options import Option
from twopc.spark import Output, foreach_batch
from twopc.spark.data_source import options as source_options
from twopc_delta import options as delta_options
from twopc_files import options as files_options
from twopc_iceberg import options as iceberg_options
from twopc_kafka import options as kafka_options
from twopc_mysql import options as mysql_options
from twopc_postgres import options as postgres_options
from twopc_pravega import options as pravega_options
from twopc_sql import options as sql_options


@pytest.mark.parametrize(
    ("page", "options"),
    [
        (ROOT / "plugins/kafka/README.md", kafka_options.OPTIONS),
        (ROOT / "plugins/files/README.md", files_options.OPTIONS),
        (ROOT / "plugins/postgres/README.md", postgres_options.OPTIONS),
        (ROOT / "plugins/iceberg/README.md", iceberg_options.OPTIONS),
        (ROOT / "plugins/delta/README.md", delta_options.OPTIONS),
        (ROOT / "plugins/mysql/README.md", mysql_options.OPTIONS),
        (ROOT / "plugins/pravega/README.md", pravega_options.OPTIONS),
        (ROOT / "plugins/sql/README.md", sql_options.OPTIONS),
        (DOCS / "other-ways.md", source_options.OPTIONS),
    ],
)
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
