"""The options of the Pravega sink: what is refused, what is hidden."""

import pickle
from typing import Any

import pyarrow as pa
import pytest

from twopc.errors import ConfigurationError, SchemaMismatch
from twopc_pravega import PravegaSink
from twopc_pravega.events import check_columns
from twopc_pravega.options import PravegaOptions, Server, Stream

NEEDED = {"controller": "tcp://controller.example:9090", "stream": "sales/orders"}


def test_an_address_and_a_stream_are_enough() -> None:
    options = PravegaOptions.parse(NEEDED)
    assert options.server == Server("controller.example:9090")
    assert options.stream == Stream("sales", "orders")
    assert options.lease_ms == 600_000


def test_every_option_may_be_text() -> None:
    given = {"controller": "tls://[::1]:9090", "lease_s": "30.5", "username": "writer", "password": "secret"}
    options = PravegaOptions.parse({**NEEDED, **given, "ca_file": "/etc/ca.pem"})
    assert options.server == Server("[::1]:9090", True, "writer", "secret", "/etc/ca.pem")
    assert options.lease_ms == 30_500


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("controller", "pravega.corp:9090"),
        ("controller", "tcp://pravega.corp"),
        ("controller", "tcp://controller.example:99999"),
        ("controller", "http://controller.example:9090"),
        ("controller", "tcp://user:secret@controller.example:9090"),
        ("stream", "clicks"),
        ("stream", "sales/eu/orders"),
        ("stream", "sales/or_ders"),
        ("controller", 1234),
        ("stream", 1234),
        ("lease_s", 5),
        ("lease_s", "an hour"),
        ("ca_file", "/etc/ca.pem"),
        ("username", "writer"),
        ("password", "secret"),
    ],
)
def test_an_option_that_is_wrong_or_alone_is_refused_without_its_value(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PravegaSink({**NEEDED, option: value})
    assert refused.value.option in (option, "username", "password")
    assert (
        str(value) not in str(refused.value).replace("'username'", "").replace("'password'", "") or option == "username"
    )


def test_a_password_is_in_no_repr_and_no_message() -> None:
    sink = PravegaSink({**NEEDED, "username": "writer", "password": "hunter2"})
    assert "hunter2" not in repr(sink) + repr(vars(sink)) + str(sink._options)


def test_a_sink_travels_with_its_options() -> None:
    sink = pickle.loads(pickle.dumps(PravegaSink(NEEDED)))  # noqa: S301  # our own bytes
    assert repr(sink) == "PravegaSink(stream sales/orders at controller.example:9090)"


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"value": pa.int64()}, "'value' is int64"),
        ({"value": pa.string(), "key": pa.binary()}, "'key' is binary"),
        ({"key": pa.string()}, "needs a column 'value'"),
        ({"value": pa.string(), "day": pa.string()}, "no column 'day'"),
    ],
)
def test_records_of_another_schema_are_refused_by_the_column(columns: dict[str, pa.DataType], named: str) -> None:
    with pytest.raises(SchemaMismatch, match=named):
        check_columns(pa.schema(columns))


def test_a_file_of_certificates_that_is_missing_is_refused_by_its_option() -> None:
    sink = PravegaSink({**NEEDED, "controller": "tls://127.0.0.1:1", "ca_file": "/does/not/exist.pem"})
    with pytest.raises(ConfigurationError, match="ca_file") as refused:
        sink.validate(pa.schema({"value": pa.string()}))
    assert refused.value.option == "ca_file"
