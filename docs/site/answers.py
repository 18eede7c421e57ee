"""Fills ``docs/answers.md`` in from the tables of the backends: ``python docs/site/answers.py``.

The text between ``<!-- postgres -->`` and ``<!-- end -->`` is what the sinks know of the answers of that system. A test
compares the page with the code.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from twopc.stores.errors import DISK_AWAY, REFUSING, TEMPORARY
from twopc_iceberg.outcomes import ANSWERS, CatalogAnswer
from twopc_kafka.answers import MEANINGS, WriteAnswer
from twopc_mysql import outcomes as mysql
from twopc_postgres import outcomes as postgres
from twopc_pravega import outcomes as pravega
from twopc_sql import sessions as sql

PAGE = Path(__file__).parents[1] / "answers.md"

_BLOCK = re.compile(r"^<!-- (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)

_OF_KAFKA = {
    WriteAnswer.REPEAT: "temporary",
    WriteAnswer.RUN_AGAIN: "temporary",
    WriteAnswer.REFUSED: "record",
    WriteAnswer.CORRECT: "configuration",
    WriteAnswer.DENIED: "configuration",
}

_OF_ICEBERG = {
    CatalogAnswer.CONFLICT: "temporary",
    CatalogAnswer.REPEAT: "temporary",
    CatalogAnswer.MISSING: "configuration",
    CatalogAnswer.REFUSED: "configuration",
}

Row = tuple[str, str, str]
"""What is answered, its class, and why or what to do."""


def filled(page: str) -> str:
    """Return the page with its tables as the code has them."""
    return _BLOCK.sub(lambda found: f"<!-- {found[1]} -->\n\n{_table(_ROWS[found[1]]())}\n\n<!-- end -->", page)


def _table(rows: Iterable[Row]) -> str:
    lines = [f"| `{answer}` | {of_class} | {' '.join(why.split())} |" for answer, of_class, why in rows]
    return "\n".join(["| answer | class | why, or what to do |", "| --- | --- | --- |", *lines])


def _of(of_class: str, table: Mapping[str, str] | Mapping[int, str]) -> Iterator[Row]:
    for answer, why in sorted(table.items()):
        yield str(answer), of_class, why


def _numbers(of_class: str, numbers: Iterable[int], why: str) -> Row:
    return "`, `".join(sorted(errno.errorcode[number] for number in numbers)), of_class, why


def _stores() -> Iterator[Row]:
    yield _numbers("configuration", REFUSING, "the store refuses until somebody changes something")
    yield _numbers("temporary", TEMPORARY, "the store or its network was busy, or did not answer")
    yield _numbers("temporary", DISK_AWAY, "where a table, a folder or a published file was seen before")


def _kafka() -> Iterator[Row]:
    for meaning in sorted(MEANINGS.values(), key=lambda meaning: (_OF_KAFKA.get(meaning.answer, ""), meaning.name)):
        if meaning.answer in _OF_KAFKA:
            is_denied = meaning.answer is WriteAnswer.DENIED
            yield meaning.name, _OF_KAFKA[meaning.answer], "Grant the right." if is_denied else meaning.advice


def _postgres() -> Iterator[Row]:
    yield from _of("configuration", postgres.CONFIGURATION)
    yield from _of("record", postgres.RECORD)
    yield from _of("temporary", postgres.TEMPORARY)


def _mysql() -> Iterator[Row]:
    yield from _of("configuration", mysql.CONFIGURATION)
    yield from _of("record", mysql.RULES)
    yield from _of("temporary", {**mysql.REPEAT, **mysql.OF_ANOTHER_ROW})


def _sql() -> Iterator[Row]:
    tables = {
        "PostgreSQL": sql._TEMPORARY_IN_POSTGRES,  # noqa: SLF001  # not for users
        "MariaDB, MySQL": sql._TEMPORARY_IN_MYSQL,  # noqa: SLF001
        "SQLite, by how the message begins": sql._TEMPORARY_IN_SQLITE,  # noqa: SLF001
        "DuckDB, by the exception's class": sql._TEMPORARY_IN_DUCKDB,  # noqa: SLF001
        "DuckDB, by the words of an IOException": sql._WORDS_OF_DUCKDB,  # noqa: SLF001
    }
    for database, answers in tables.items():
        for answer in sorted(answers, key=str):
            yield str(answer), "temporary", database


def _iceberg() -> Iterator[Row]:
    rows = [(kind.__name__, _OF_ICEBERG[answer], answer.value) for kinds, answer in ANSWERS for kind in kinds]
    yield from sorted(rows, key=lambda row: (row[1], row[0]))


def _pravega() -> Iterator[Row]:
    for code in pravega.DENIED:
        yield code.name, "configuration", "correct 'username' and 'password', or grant the rights"


_ROWS = {
    "stores": _stores,
    "kafka": _kafka,
    "postgres": _postgres,
    "mysql": _mysql,
    "sql": _sql,
    "iceberg": _iceberg,
    "pravega": _pravega,
}

if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
