"""Options are checked before anything is connected to, and a password is seen nowhere (invariant 8)."""

import errno
import ssl
import traceback
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pymysql
import pytest

import twopc
from tests.sinks.mysql.conftest import Place, new_place
from tests.sinks.options_contract import OptionsContract
from tests.support.mariadb_server import MariaDbServer
from tests.support.raising import raising
from tests.support.sink_place import ROUND
from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc_mysql import sessions
from twopc_mysql.options import MysqlOptions

GOOD = {"url": "mysql://writer:hunter2@db.example/sales", "table": "orders"}


WRONG: list[Mapping[str, Any]] = [
    {"url": None},
    {"url": "host=db hunter2"},
    {"url": "postgresql://writer:hunter2@db.example/sales"},
    {"url": "mysql+aiomysql://writer:hunter2@db.example/sales"},
    {"url": "mysql://writer:hun@ter2@db.example/sales"},
    {"url": "mysql://writer:hunter2/x@db.example/sales"},
    {"url": "mysql://writer:hunter2?x@db.example/sales"},
    {"url": "mysql://writer:hunter2#x@db.example/sales"},
    {"url": "mysql://writer:hunter2@db.example/sales?charset=latin1"},
    {"url": "mysql://writer:hunter2@db.example/sales?ssl_verify_cert=ter2"},
    {"url": "mysql://writer:hunter2@db.example/sales?connect_timeout=0"},
    {"url": "mysql://writer:hunter2@db.example/", "table": "orders"},
    {"lock_timeout_s": "soon"},
]


class TestOptions(OptionsContract):
    good = GOOD
    wrong = WRONG


def parsed(**options: Any) -> MysqlOptions:
    return MysqlOptions.parse({**GOOD, **options})


def test_a_url_has_the_arguments_of_pymysql() -> None:
    url = "mysql+pymysql://the%20writer:p%40ss%2F%E2%82%AC@[::1]:3307/sa%2Dles?connect_timeout=3&ssl_ca=/ca.pem"
    assert parsed(url=url).connection == {
        "host": "::1",
        "port": 3307,
        "user": "the writer",
        "password": "p@ss/€".encode(),
        "database": "sa-les",
        "connect_timeout": 3,
        "ssl_ca": "/ca.pem",
        "ssl_verify_cert": True,
    }


@pytest.mark.parametrize(
    ("table", "qualified"), [("orders", ("sales", "orders")), ("archive.orders", ("archive", "orders"))]
)
def test_a_table_is_of_the_database_of_the_url_or_of_its_own(table: str, qualified: tuple[str, str]) -> None:
    options = parsed(table=table)
    assert (options.database, options.table) == qualified


def test_a_password_in_an_option_file_is_used(place: Place, tmp_path: Any) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\npassword={place.server.password}\n")
    url = f"mysql://root@localhost/{place.database}?unix_socket={place.server.socket}&read_default_file={file}"
    sink = place.sink(url=url)
    assert list(sink.recover()) == []
    sink.close()


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql"])
@pytest.mark.parametrize("lines", ["password=hunter2", "[client]\nport=hunter2"])
def test_an_option_file_that_pymysql_cant_read_is_refused_without_its_lines(
    lines: str, scheme: str, tmp_path: Any
) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(f"{lines}\n")
    backend = "mysql" if scheme == "mysql" else "sql"
    options = {"url": f"{scheme}://writer@db.example/sales?read_default_file={file}", "table": "orders"}
    sink = twopc.create_sink(backend, options)
    with pytest.raises(ConfigurationError, match="the option file that it names") as caught:
        sink.validate(pa.schema([("id", pa.int64())]))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("file", ["/nowhere/ca.pem", __file__])
def test_a_certificate_that_is_not_there_or_is_none_stops_the_query(file: str, place: Place) -> None:
    url = place.server.url(place.database, query=f"&ssl_ca={file}")
    with pytest.raises(OperatorRequired, match=r"2026, can't use a certificate.* Correct the certificates"):
        place.sink(url=url)
    sink = place.bound(url=url)
    with pytest.raises(ConfigurationError, match=r"2026, can't use a certificate.* Correct the certificates"):
        sink.begin(sink.transactional_ids.allocate(ROUND, 0))
    committable = place.vote(["a"])
    with pytest.raises(OperatorRequired, match="is decided: the server refuses: 2026"):
        sink.commit(committable)
    place.sink().commit(committable)


def test_a_certificate_that_can_not_be_loaded_now_is_an_outage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql, "connect", raising(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(Retriable, match="Too many open files"):
        place.sink(url="mysql://writer@nowhere.example/sales")


def test_a_package_that_a_users_method_of_authentication_needs_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql, "connect", raising(RuntimeError("'cryptography' package is required")))
    with pytest.raises(OperatorRequired, match=r"'cryptography' package is required.* install the package"):
        place.sink(url="mysql://writer@nowhere.example/sales")


@pytest.mark.long
def test_a_connection_over_the_network_is_encrypted_and_a_given_authority_is_believed_alone() -> None:
    with MariaDbServer(ssl="ON", version="11.4.5") as server:
        place = new_place(server)
        place.ask(f"CREATE USER writer@'127.0.0.1' IDENTIFIED BY '{server.password}'")
        place.ask("GRANT ALL ON *.* TO writer@'127.0.0.1'")
        url = f"mysql://writer:{server.password}@127.0.0.1:{server.port}/{place.database}"
        with sessions.session(MysqlOptions.parse({"url": url, "table": "orders"}).connection) as connection:
            [(_, cipher)] = sessions.ask(connection, "SHOW STATUS LIKE 'Ssl_cipher'")
        assert cipher
        authorities = ssl.get_default_verify_paths().openssl_cafile
        with pytest.raises(OperatorRequired, match=r"2026, .*certificate verify failed"):
            place.sink(url=f"{url}?ssl_ca={authorities}")


def test_a_server_can_read_no_file_of_its_client(place: Place) -> None:
    with place.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL local_infile = ON")
    try:
        sink = place.sink()
        with (
            sessions.session(sink._options.connection) as connection,
            pytest.raises((pymysql.MySQLError, RuntimeError)),
        ):
            sessions.ask(connection, f"LOAD DATA LOCAL INFILE '{__file__}' INTO TABLE {place.database}.orders")
    finally:
        place.unbound().close()
        place.ask("SET GLOBAL local_infile = OFF")


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql"])
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("Did not specify a username"), "Did not specify a username"),
        (UnicodeEncodeError("latin-1", "hunter2", 0, 7, "ordinal not in range"), "UnicodeEncodeError"),
    ],
)
def test_what_pymysql_does_not_take_of_a_url_is_told_in_its_words(
    error: Exception, shown: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql, "connect", raising(error))
    sink = twopc.create_sink(
        "mysql" if scheme == "mysql" else "sql", {"url": f"{scheme}://writer@db.example/sales", "table": "orders"}
    )
    with pytest.raises(ConfigurationError, match=rf"PyMySQL does not take.*{shown}") as caught:
        sink.validate(pa.schema([("id", pa.int64())]))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
