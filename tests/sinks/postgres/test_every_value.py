"""Whatever a column takes is read back as it was given, and whatever it would change is refused (invariant 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.every_value import VALUES, write_good
from tests.support.kept_columns import PAGE, declared, filled, kept
from twopc.errors import ConfigurationError, RecordRefused, SchemaMismatch
from twopc_postgres.columns import EXACT_ENCODINGS

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place

MODIFIED = ["varchar(3)", "char(5)", "char(2)", "bit(3)", "varbit(3)", "time(3)", "time(0)", "timetz(0)", "interval(0)"]
MODIFIED += ["timestamp(0)", "timestamp(3)", "timestamptz(0)", "numeric(5,-2)", "numeric(3)", "varchar(3)[]", "int[]"]


def kinds(place: Place) -> list[str]:
    """Every type of the server's catalog that a column can have, and some with modifiers."""
    found = place.ask(
        "SELECT t.oid::regtype::text FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem"
        " WHERE t.typtype IN ('b', 'r', 'm') AND t.typisdefined AND coalesce(e.typtype, 'b') NOT IN ('c', 'p')"
        " AND t.typnamespace = 'pg_catalog'::regnamespace ORDER BY 1"
    )
    return [*(name for (name,) in found), *MODIFIED]


def table(place: Place) -> str:
    """The table of the page: what a column of each type takes."""
    names = [name for name in kinds(place) if name not in ("pg_node_tree", "pg_ndistinct", "pg_dependencies")]
    place.create(declared(names))
    with place.unbound()._requesting("reading") as connection:
        return kept(names, place.unbound()._table.columns(connection), lambda column: column.is_proven)


def test_the_page_says_which_arrow_types_each_column_takes(place: Place) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled("PostgreSQL", table(place), page) == page, "run python -m tests.support.kept_columns"


SPELLED = {name: name for name in ("uuid", "macaddr", "inet", "time", "timetz", "bpchar")}
SPELLED |= {"char": "bpchar", "character": "bpchar"}
SPELLED |= {"time without time zone": "time", "time with time zone": "timetz"}
"""Types with several spellings of a value → the type in which PostgreSQL compares the values alone."""


@pytest.mark.long
def test_every_type_of_the_catalog_keeps_a_value_as_it_is_or_the_value_is_refused(place: Place) -> None:
    changed = []
    for kind in kinds(place):
        place.create(f"value {kind}")
        for values in VALUES:
            if (left := write_good(place, values)) is None:
                continue
            as_text = pa.types.is_string(values.type)
            kept = [row[0 if as_text else 1] for row in place.ask("SELECT format('%%s', value), value FROM {}")]
            if (base := SPELLED.get(kind.partition("(")[0])) and as_text and len(kept) == len(left):
                [(is_kept,)] = place.ask(f"SELECT %s::text[]::{base}[] = %s::text[]::{base}[]", kept, left)
            else:
                is_kept = kind == "jsonb" or kept == left  # jsonb spells JSON in its own way
            if not is_kept:
                changed.append((kind, left, kept))
    assert changed == []


TYPES = """
    CREATE TYPE {0}.words; CREATE TYPE {0}.whole_text;
    CREATE FUNCTION {0}.a(cstring) RETURNS {0}.words LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION {0}.b({0}.words) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE FUNCTION {0}.c(cstring) RETURNS {0}.whole_text LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
    CREATE FUNCTION {0}.d({0}.whole_text) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
    CREATE TYPE {0}.words (INPUT = {0}.a, OUTPUT = {0}.b, LIKE = text);
    CREATE TYPE {0}.whole_text (INPUT = {0}.c, OUTPUT = {0}.d, LIKE = int4, DELIMITER = ':')
"""
"""Types as extensions have them: the first is made as citext is, and the arrays of the second are those of PostGIS."""


@pytest.mark.variants
@pytest.mark.parametrize(
    ("column", "text", "kept"),
    [
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("uuid", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("macaddr", "08002B010203", "08:00:2b:01:02:03"),
        ("inet", "10.0.0.1/32", "10.0.0.1"),
        ("inet", "::FFFF", "::ffff"),
        ("time", "12:00", "12:00:00"),
        ("time(3)", "12:00:00.100000", "12:00:00.1"),
        ("timetz", "12:00:00.500+02:00", "12:00:00.5+02"),
        ("char(5)", "ab", "ab   "),
        ("char(5)", "ab      ", "ab   "),
        ("{0}.words", "Größe  ", "Größe  "),
        ("{0}.whole_text", "7", "7"),
    ],
)
def test_a_text_of_which_only_the_spelling_changes_is_kept(column: str, text: str, kept: str, place: Place) -> None:
    place.ask(TYPES.format(place.schema))
    place.create(f"value {column.format(place.schema)}")
    place.sink().validate(pa.schema([("value", pa.string())]))
    place.sink().commit(place.vote({"value": [text]}))
    assert place.ask("SELECT format('%%s', value) FROM {}") == [(kept,)]


@pytest.mark.variants
@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("varchar(3)", "abc   "),
        ("char(5)", "abcdef"),
        ("time(3)", "23:59:60"),
        ("timetz(0)", "12:00:00.6+02"),
        ("cidr", "10.0.0.1"),
        ("{0}.whole_text", "007"),
        ("time(3)", "12:00:00.1239"),
        ("interval(0)", "00:00:00.6"),
        ("bit(3)", "1010"),
        ("varchar(3)[]", ["a", "abc   "]),
        ("jsonb", '{"a": 1, "a": 2}'),
        ("jsonb", "[1e-20000]"),
        ("jsonb", "[1e99999999999999999999]"),
        ("jsonb", "[-0.0]"),
        ("jsonb", "[" * 2000 + '{"a": 1, "a": 2}' + "]" * 2000),
    ],
)
def test_a_text_that_a_column_would_change_is_refused_and_can_be_left_out(column: str, text: Any, place: Place) -> None:
    place.ask(TYPES.format(place.schema))
    place.create(f"value {column.format(place.schema)}")
    good = {"bit(3)": "101", "jsonb": "[]", "{0}.whole_text": "7", "varchar(3)[]": ["ab"], "cidr": "10.0.0.0/8"}
    good |= {"varchar(3)": "abc", "char(5)": "abcde", "timetz(0)": "12:00:00+02"}
    values = [good.get(column, "12:00:00"), text]
    with pytest.raises(RecordRefused) as refused:
        place.vote(pa.record_batch({"value": values}))
    assert (refused.value.record, refused.value.column) == (1, "value")
    vote, left_out = place.vote_without_bad({"value": values})
    place.sink().commit(vote)
    assert left_out == [1]
    assert place.ask("SELECT count(*) FROM {}") == [(1,)]


def test_a_list_is_refused_whose_column_has_another_delimiter(place: Place) -> None:
    """It would be an array of one element."""
    place.ask(TYPES.format(place.schema))
    place.create(f"value {place.schema}.whole_text[]")
    with pytest.raises(SchemaMismatch, match="column 'value'"):
        place.sink().validate(pa.schema([("value", pa.list_(pa.string()))]))


def test_a_database_whose_encoding_changes_characters_without_a_warning_is_refused(place: Place) -> None:
    name = f"{place.schema}_eucjp"
    place.ask(f"CREATE DATABASE {name} ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0")
    sink = place.unbound(conninfo=place.reach(dbname=name))
    try:
        with pytest.raises(ConfigurationError, match="the encoding EUC_JP, which may not keep each character"):
            list(sink.check())
    finally:
        sink.close()
        place.ask(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.long
def test_an_encoding_that_is_taken_keeps_every_character_or_the_server_refuses_it(place: Place) -> None:
    place.ask(
        "CREATE FUNCTION {}_kept(c text, e text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " RETURN convert_from(convert_to(c, e), e) = c; EXCEPTION WHEN OTHERS THEN RETURN true; END $$"
    )
    changed = [
        encoding
        for encoding in sorted(EXACT_ENCODINGS)
        if place.ask(
            "SELECT 1 FROM generate_series(1, 196607) n WHERE n NOT BETWEEN 55296 AND 57343"
            " AND NOT {}_kept(chr(n), %s) LIMIT 1",
            encoding,
        )
    ]
    assert changed == []
