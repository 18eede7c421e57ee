"""Whatever a column takes is read back as it was given, and whatever it would change is refused (invariant 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.every_value import VALUES, write_good
from tests.support.kept_columns import PAGE, declared, filled, kept
from twopc.errors import SchemaMismatch
from twopc_mysql.columns import EXACT

if TYPE_CHECKING:
    from tests.sinks.mysql.conftest import Place

KINDS = [
    *("TINYINT", "TINYINT UNSIGNED", "SMALLINT", "MEDIUMINT UNSIGNED", "INT", "INT UNSIGNED ZEROFILL", "BIGINT"),
    *("BIGINT UNSIGNED", "DECIMAL(5,0)", "DECIMAL(5,2)", "DECIMAL(20,0) UNSIGNED", "FLOAT", "FLOAT(7,2)", "DOUBLE"),
    *(
        "DOUBLE UNSIGNED",
        "BIT(8)",
        "CHAR(5)",
        "VARCHAR(3)",
        "VARCHAR(50) COLLATE utf8mb4_general_ci",
        "TINYTEXT",
        "TEXT",
    ),
    *("VARCHAR(9) CHARACTER SET latin1", "LONGTEXT", "BINARY(5)", "VARBINARY(3)", "TINYBLOB", "LONGBLOB", "JSON"),
    *(
        "ENUM('2','1','b')",
        "SET('a','b')",
        "DATE",
        "TIME",
        "TIME(3)",
        "DATETIME",
        "DATETIME(3)",
        "TIMESTAMP NULL",
        "YEAR",
    ),
    *("UUID", "INET4", "INET6", "GEOMETRY", "POINT"),
]


def table(place: Place) -> str:
    """The table of the page: what a column of each type takes."""
    place.create(declared(KINDS))
    with place.unbound()._requesting("reading") as connection:
        return kept(KINDS, place.unbound()._table.columns(connection), lambda column: False)


def test_the_page_says_which_arrow_types_each_column_takes(place: Place) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled("MariaDB", table(place), page) == page, "run python -m tests.support.kept_columns"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_keeps_a_value_as_it_is_or_the_value_is_refused(kind: str, place: Place) -> None:
    place.create(f"value {kind}")
    for values in VALUES:
        if (left := write_good(place, values)) is None:
            continue
        if pa.types.is_timestamp(values.type):
            left = [moment.replace(tzinfo=None) for moment in left]
        assert [value for (value,) in place.ask("SELECT value FROM {}")] == left


@pytest.mark.parametrize("characters", ["cp932", "tis620"])
def test_a_character_set_that_changes_characters_without_a_warning_is_refused(characters: str, place: Place) -> None:
    place.create(f"value VARCHAR(9) CHARACTER SET {characters}")
    with pytest.raises(SchemaMismatch, match=rf"{characters} changes some characters: give the column utf8mb4"):
        place.sink().validate(pa.schema([("value", pa.string())]))


@pytest.mark.long
def test_a_character_set_that_is_taken_keeps_every_character_or_the_server_refuses_it(place: Place) -> None:
    place.create("value VARCHAR(1) COLLATE utf8mb4_bin")
    characters = [chr(n) for n in range(1, 0x30000) if not 0xD800 <= n < 0xE000]
    place.sink().commit(place.vote({"value": characters}))
    changed = {}
    for (name,) in place.ask("SELECT character_set_name FROM information_schema.character_sets"):
        again = f"CAST(CONVERT(CONVERT(value USING {name}) USING utf8mb4) AS BINARY)"
        asked = f"SELECT COUNT(*) FROM {{}} WHERE {again} NOT IN (CAST(value AS BINARY), '?')"  # noqa: S608
        [(changed[name],)] = place.ask(asked)
    assert {name for name, count in changed.items() if count} & EXACT == set()
    assert {name for name, count in changed.items() if not count} - EXACT == {"binary"}
