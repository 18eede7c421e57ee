"""What the SQL sink makes of a database's refusals: none that lasts is called temporary, and each has its own advice
(invariant 15)."""

import errno
import os
import ssl
import uuid
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa

from tests.sinks.sql.conftest import Place
from tests.support.raising import raising
from tests.support.sink_place import ROUND
from twopc.errors import ConfigurationError, OperatorRequired, Refused, Retriable
from twopc.failures import CUT_OFF, mapped
from twopc_mysql import outcomes
from twopc_sql import sessions
from twopc_sql.options import SqlOptions

VALUE = pa.schema({"value": pa.string()})

OF_XA = {1399, 3197}
"""Answers to a statement that this sink does not send."""


def with_option(setting: str) -> Callable[[sa.URL], sa.URL]:
    return lambda url: url.update_query_dict({"options": f"-c {setting}"})


def test_both_sinks_of_mariadb_take_the_same_errors_for_temporary() -> None:
    assert {*sessions._TEMPORARY_IN_MYSQL} == {*outcomes.REPEAT} - OF_XA


@pytest.mark.parametrize("database", ["sqlite", "duckdb"])
def test_a_file_in_a_folder_that_is_missing_is_no_outage(place: Place) -> None:
    url = place.url.set(database=f"{place.url.database}.nowhere/database")
    with pytest.raises(OperatorRequired, match="Let 'url' name a file in a folder that exists"):
        place.sink(url=url)
    sink = place.bound(url=url)
    with pytest.raises(Refused, match="Let 'url' name a file in a folder that exists"):
        sink.begin(sink.transactional_ids.allocate(ROUND, 0))


@pytest.mark.variants
@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("password authentication failed", lambda url: url.set(password="wrong")),  # noqa: S106  # of nobody
        ('database "nowhere" does not exist', lambda url: url.set(database="nowhere")),
        ("unrecognized configuration parameter", with_option("odd=1")),
        ("invalid value for parameter", with_option("work_mem=odd")),
        ('role "nobody" does not exist', with_option("role=nobody")),
    ],
)
def test_a_login_that_is_refused_for_good_is_no_outage(
    words: str, changed: Callable[[sa.URL], sa.URL], place: Place
) -> None:
    with pytest.raises(OperatorRequired, match=f"{words}.*Correct user, password and database in 'url'"):
        place.sink(url=changed(place.url))


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_role_without_the_right_to_insert_is_told_to_get_it(place: Place) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    place.ask(f"CREATE ROLE {role}")
    try:
        sink = place.bound(url=with_option(f"role={role}")(place.url))
        with pytest.raises(ConfigurationError, match=r"permission denied for table orders\. Grant the rights"):
            sink.validate(VALUE)
    finally:
        place.ask(f"DROP ROLE {role}")


@pytest.mark.parametrize("database", ["mysql"])
def test_a_default_that_strict_mode_refuses_is_no_missing_right(place: Place) -> None:
    place.create("value {text}, day DATE NOT NULL DEFAULT '0000-00-00'")
    with pytest.raises(ConfigurationError, match=r"1978, .* Change the default of the column") as refused:
        place.sink().validate(VALUE)
    assert "rights" not in refused.value.message


@pytest.mark.parametrize("database", ["mysql"])
def test_a_certificate_that_is_not_there_is_no_outage(place: Place) -> None:
    url = place.url.update_query_dict({"ssl_ca": "/nowhere/ca.pem"})
    with pytest.raises(OperatorRequired, match=r"No such file.* Correct the certificates that 'url' names"):
        place.sink(url=url)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), Retriable, "Too many open files"),
        (PermissionError(errno.EACCES, "Permission denied"), OperatorRequired, "Correct the certificates"),
        (RuntimeError("'cryptography' package is required"), OperatorRequired, "is required.* install the package"),
    ],
)
def test_what_pymysql_raises_before_it_connects_is_told_apart(
    error: Exception, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql, "connect", raising(error))
    options = SqlOptions.parse({"url": "mysql+pymysql://writer@nowhere.example/sales", "table": "orders"})
    with pytest.raises(raised, match=words), mapped(sa.exc.DBAPIError, sessions.request_failed, "asked"):
        sessions.engine(options).connect()


@pytest.mark.parametrize("cut", [*CUT_OFF, ssl.SSLError])
def test_a_tls_connection_that_is_cut_off_is_an_outage(cut: type[ssl.SSLError]) -> None:
    original = pymysql.OperationalError(2003, "Can't connect")
    original.original_exception = cut("cut")
    error = sa.exc.OperationalError("SELECT 1", {}, original)
    assert sessions.is_temporary(error) == (cut is not ssl.SSLError)


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EAGAIN, errno.EROFS])
def test_a_mount_that_is_away_is_an_outage_for_duckdb(number: int) -> None:
    original = duckdb.IOException(f'IO Error: Could not read from file "/mnt/sales": {os.strerror(number)}')
    error = sa.exc.OperationalError("SELECT 1", {}, original)
    assert sessions.is_temporary(error) == (number != errno.EROFS)


@pytest.mark.parametrize("failed", [sessions.trial_failed, sessions.request_failed, sessions.write_failed])
def test_a_missing_partition_is_told_without_the_value_that_has_none(
    failed: Callable[[sa.exc.DBAPIError, str], Exception],
) -> None:
    missing = pymysql.OperationalError(1526, "Table has no partition for value 'hunter2'")
    told = str(failed(sa.exc.OperationalError(None, None, missing), "the batch could not be moved"))
    assert "OperationalError" in told
    assert "hunter2" not in told
