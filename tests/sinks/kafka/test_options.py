"""What a user may set, what is refused, and what becomes of secrets."""

import contextlib
import logging
import re
import socket
from typing import Any

import confluent_kafka
import pytest

from twopc.errors import ConfigurationError
from twopc.options import Kind
from twopc_kafka import KafkaSink, properties
from twopc_kafka.options import DEFAULTS, WRITERS, parse_options

NEEDS_MORE = ("plugin.library.paths", "sasl.mechanisms", "delivery.timeout.ms", "client.id", "client.rack")
"""Options of which librdkafka takes any text, or which the sink checks elsewhere."""

SERVERS = {"bootstrap.servers": "broker:9092"}
SECRET = "hunter2-is-the-password"  # noqa: S105  # what must not be seen anywhere

TLS_AND_SASL = {
    **SERVERS,
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": SECRET,
}


def refusal(**changes: Any) -> str:
    """The message with which options are refused; ``_`` in a name stands for a dot."""
    options = SERVERS | {name.replace("_", "."): value for name, value in changes.items()}
    with pytest.raises(ConfigurationError) as refused:
        parse_options({name: value for name, value in options.items() if value != "ABSENT"})
    return str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *("transactional.id", "delivery.report.only.error", "statistics.interval.ms", "metadata.broker.list"),
        *("allow.auto.create.topics", "logger"),
    ],
)
def test_what_the_sink_sets_itself_is_refused_by_name_with_the_reason(name: str) -> None:
    assert f"{name!r} can't be set on a kafka sink: " in refusal(**{name: SECRET})


@pytest.mark.parametrize(
    "name",
    [
        *("ssl.engine.location", "enable.ssl.certificate.verification", "sasl.oauthbearer.assertion.private.key.pem"),
        *("sasl.pasword", "https.ca.pem"),
    ],
)
def test_security_that_control_can_not_honor_is_refused_by_name(name: str) -> None:
    message = refusal(**{name: SECRET})
    assert f"{name!r} can't be used" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_delivery", print),
        ("oauth_cb", print),
        ("sasl.password", SECRET.encode()),
        ("sasl.password", None),
        ("bootstrap.servers", ["a:1", "b:2"]),
        ("bootstrap.servers", ("a:1",)),
        ("transaction.timeout.ms", None),
        ("topic", ["orders"]),
    ],
)
def test_an_option_that_is_neither_text_nor_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' of the kafka sink must be text or a number") as refused:
        parse_options(SERVERS | {name: value})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *("delivery", "linger.ms", "transaction.timeout.ms", "message.timeout.ms", "socket.timeout.ms"),
        *("compression.type", "security.protocol", "no.such.option"),
    ],
)
def test_a_wrong_value_is_refused_by_the_options_name_and_the_value_is_not_shown(name: str) -> None:
    message = refusal(**{name: SECRET})
    assert f"'{name}'" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "servers",
    [
        *("broker:abc", "broker:", "a:1,b:c", "a:0", "a:65536", "a:9092/", "a:1:2", "a:1,,b:2", ",", "a:1 b:2"),
        *("a: 1", "['a:1', 'b:2']", '["a:1"]', "a:1\\n", "::1", "[::1", "HTTP://a:9092", "://a:9092", "a://"),
    ],
)
def test_what_is_no_address_is_refused(servers: str) -> None:
    assert "'bootstrap.servers' of the kafka sink must be addresses" in refusal(bootstrap_servers=servers)


@pytest.mark.parametrize(
    ("servers", "read"),
    [
        ("a", "a:9092"),
        ("a:65535", "a:65535"),
        (" a:1 ,\tb-c.d_e:2\n", "a:1,b-c.d_e:2"),
        ("a:1,b:2,", "a:1,b:2"),
        ("a:1,b:2,a:1", "a:1,b:2"),
        ("[::1]", "[::1]:9092"),
        ("[fe80::1%eth0]:9093", "[fe80::1%eth0]:9093"),
        ("plaintext://a:1,PLAINTEXT://b", "a:1,b:9092"),
    ],
)
def test_addresses_are_read_alike_by_both_clients(servers: str, read: str) -> None:
    options = parse_options({"bootstrap.servers": servers})
    assert options.properties["bootstrap.servers"] == read
    assert options.control["bootstrap_servers"] == read.split(",")


@pytest.mark.advice("has an address that begins with")
@pytest.mark.parametrize("scheme", ["SSL", "sasl_ssl", "SASL_PLAINTEXT"])
def test_an_address_of_another_protocol_is_refused_and_taken_after_either_advice(scheme: str) -> None:
    servers = f"{scheme}://a:9092"
    assert f"Set 'security.protocol' to '{scheme.upper()}', or take" in refusal(bootstrap_servers=servers)
    options = {"bootstrap.servers": servers, "security.protocol": scheme.upper()}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": SECRET}
    parse_options(options | (login if "SASL" in scheme.upper() else {}))
    parse_options({"bootstrap.servers": "a:9092"})


@pytest.mark.parametrize(
    ("name", "protocol"), [("sasl.password", "ABSENT"), ("sasl.username", "ssl"), ("ssl.ca.location", "SASL_PLAINTEXT")]
)
@pytest.mark.advice("has no effect with 'security.protocol'")
def test_a_login_or_certificate_that_the_protocol_would_ignore_is_refused(name: str, protocol: str) -> None:
    message = refusal(**{name: SECRET, "security.protocol": protocol})
    assert f"{name!r} of the kafka sink has no effect with 'security.protocol'" in message
    assert SECRET not in message
    assert f"or leave {name!r} out" in message
    parse_options(SERVERS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("message.timeout.ms", value) for value in ("00", "0.5", "1e3", "-1", "")),  # librdkafka reads it otherwise
        *((name, "0") for name in ("message.timeout.ms", "delivery.timeout.ms")),  # a wait without end
    ],
)
def test_a_wait_that_is_no_number_of_milliseconds_is_refused(name: str, value: str) -> None:
    assert "'message.timeout.ms' of the kafka sink must be a whole number from 1" in refusal(**{name: value})


@pytest.mark.parametrize("timeout", ["0", 0, "999", -5, "1.5", 2**31])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "none"])
def test_a_wrong_transaction_timeout_is_blamed_on_no_other_option(timeout: Any, delivery: str) -> None:
    message = refusal(transaction_timeout_ms=timeout, delivery=delivery)
    assert "transaction.timeout.ms" in message
    assert "message.timeout.ms" not in message
    assert message == message.strip()


@pytest.mark.parametrize("name", ["", "o o", ".", "..", "x" * 250, "ä", "o\n", "__consumer_offsets"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_topic_that_can_not_be_written_is_refused_by_name_before_a_broker_is_asked(name: str, writer: str) -> None:
    message = refusal(topic=name, writer=writer)
    assert "'topic' of the kafka sink must be the name of a topic that is not Kafka's own" in message


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"linger.ms": 200, "message.timeout.ms": 100}, r"'linger\.ms' .* below 'message\.timeout\.ms' \(100\)"),
        ({"reconnect.backoff.ms": 20_000}, r"'reconnect\.backoff\.ms' .* no more than .* \(10000\)"),
        ({"transaction.timeout.ms": 2000, "socket.timeout.ms": 3000}, r"'socket\.timeout\.ms' .* no more than"),
        ({"max.in.flight": 6}, r"'max\.in\.flight' .* must be 5 or less"),
        ({"transaction.timeout.ms": 1000, "message.timeout.ms": 2000}, r"'message\.timeout\.ms' .* no more than"),
        ({"acks": 1}, "'acks' .* must be all"),
        ({"enable.idempotence": "false"}, r"'enable\.idempotence' .* must be true"),
        ({"retries": 0}, "'retries' .* must be 1 or more"),
        ({"queuing.strategy": "LIFO"}, r"'queuing\.strategy' .* must be fifo"),
    ],
)
def test_options_that_contradict_each_other_are_refused_as_librdkafka_would(wrong: dict[str, Any], told: str) -> None:
    given = {"transactional.id": "t", "message.timeout.ms": 2000, **{name: str(value) for name, value in wrong.items()}}
    with pytest.raises(confluent_kafka.KafkaException):
        confluent_kafka.Producer(given, logger=logging.getLogger("unheard"))
    with pytest.raises(ConfigurationError, match=told):
        parse_options({**SERVERS, "writer": "librdkafka", **wrong})


@pytest.mark.parametrize("name", [name for name in properties.NAMES if name not in NEEDS_MORE])
def test_librdkafka_knows_each_option_that_passes_through_and_takes_the_same_bounds(name: str) -> None:
    kind = properties.kind_of(name)
    outside = [f"{bound}" for bound in re.findall(r"-?[0-9]+", kind.must_be) if "from" in kind.must_be]
    words = ["true", "none", "any", "all", "fifo", "use_all_dns_ips", "text", *outside]
    for value in words:
        assert taken_by_librdkafka(name, value) == taken_by_kind(kind, value), value
    for value in [str(int(outside[0]) - 1), str(int(outside[1]) + 1)] if outside else []:
        assert (taken_by_librdkafka(name, value), taken_by_kind(kind, value)) == (False, False), value


def taken_by_kind(kind: Kind, value: str) -> bool:
    with contextlib.suppress(ValueError):
        kind.read(value)
        return True
    return False


def taken_by_librdkafka(name: str, value: str) -> bool:
    """Whether the property may have the value, whatever others it goes with."""
    try:
        confluent_kafka.Producer({name: value}, logger=logging.getLogger("unheard"))
    except confluent_kafka.KafkaException as error:
        return "Failed to create producer" in str(error)
    return True


def test_at_least_once_gives_up_idempotence_only_when_told_to() -> None:
    assert "enable.idempotence" in refusal(delivery="at-least-once", acks=1)
    parse_options({**SERVERS, "delivery": "none", "acks": 1})
    parse_options({**SERVERS, "delivery": "at-least-once", "acks": 1, "enable.idempotence": "false"})


def test_two_names_of_one_option_are_refused_together() -> None:
    two = {"sasl_mechanism": "PLAIN", "sasl_mechanisms": "PLAIN", "security_protocol": "sasl_plaintext"}
    assert "'sasl.mechanism' and 'sasl.mechanisms'" in refusal(**two)


TOKENS = {
    **SERVERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sasl.oauthbearer.method": "default"}, "'sasl.oauthbearer.method' must be 'oidc'"),
        ({"sasl.oauthbearer.client.id": ""}, "needs .*'sasl.oauthbearer.client.id'"),
        ({"sasl.oauthbearer.client.secret": ""}, "needs .*'sasl.oauthbearer.client.secret'"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "must be a URL such as https://"),
        ({"sasl.oauthbearer.token.endpoint.url": f"https://etl:{SECRET}@issuer.example/t"}, "must be a URL such as"),
        ({"sasl.oauthbearer.extensions": "tenant"}, "'sasl.oauthbearer.extensions' must have the form"),
        ({"sasl.oauthbearer.extensions": "auth=other"}, "'sasl.oauthbearer.extensions' must have the form"),
        ({"sasl.oauthbearer.extensions": "tenant=a\x01auth=other"}, "'sasl.oauthbearer.extensions' must have the form"),
        ({"sasl.mechanism": "PLAIN"}, "is only for 'sasl.mechanism' = 'OAUTHBEARER'"),
    ],
)
def test_options_that_give_no_token_are_refused(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        parse_options(TOKENS | wrong)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("writer", WRITERS)
def test_of_one_client_all_connections_of_a_process_share_a_token(writer: str) -> None:
    first, second = (parse_options({**TOKENS, "writer": writer}).control for _ in range(2))
    assert first == second
    assert parse_options(TOKENS | {"sasl.oauthbearer.client.id": "other"}).control != first


def test_a_sink_connects_to_nothing_when_it_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.setblocking(False)
        KafkaSink({"bootstrap.servers": f"127.0.0.1:{broker.getsockname()[1]}", "topic": "orders"})
        with pytest.raises(BlockingIOError):
            broker.accept()


@pytest.mark.parametrize(
    ("delivery", "writer"), [("exactly-once", "arrow"), ("at-least-once", "librdkafka"), ("none", "librdkafka")]
)
def test_the_faster_writer_that_can_do_it_is_the_default(delivery: str, writer: str) -> None:
    assert parse_options({**SERVERS, "delivery": delivery}).writer == writer


def test_options_of_librdkafka_pass_through_and_win_over_the_defaults() -> None:
    options = {"writer": "librdkafka", "linger.ms": 7, "transaction.timeout.ms": "60000"}
    properties = parse_options(SERVERS | options).properties
    assert properties["linger.ms"] == 7
    assert properties["transaction.timeout.ms"] == "60000"
    assert properties["partitioner"] == DEFAULTS["partitioner"] == "murmur2_random"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("topci", "topic"),
        ("Topic", "topic"),
        ("transaction.timeout", "transaction.timeout.ms"),
        ("bootstrap.server", "bootstrap.servers"),
        ("kafka.bootstrap.servers", "bootstrap.servers"),  # as Spark's own sink has it
    ],
)
@pytest.mark.parametrize("writer", ["arrow", "librdkafka"])
def test_a_misspelt_option_gets_the_nearest_one(misspelt: str, meant: str, writer: str) -> None:
    needed = {} if meant in SERVERS else SERVERS
    with pytest.raises(ConfigurationError, match=rf"'{misspelt}'.* Did you mean '{meant}'\?"):
        parse_options({**needed, "writer": writer, misspelt: "5"})


def test_the_default_wait_for_a_record_is_never_longer_than_its_transaction() -> None:
    assert parse_options(SERVERS).properties["message.timeout.ms"] == 120_000
    assert parse_options({**SERVERS, "transaction.timeout.ms": "5000"}).properties["message.timeout.ms"] == 5000


def test_the_other_name_of_message_timeout_replaces_the_default() -> None:
    properties = parse_options({**SERVERS, "delivery.timeout.ms": 4000}).properties
    assert properties["message.timeout.ms"] == 4000
    assert "delivery.timeout.ms" not in properties


# The control connection. ----------------------------------------------------------------------------------------------


def test_control_connects_to_every_server_as_the_data_does() -> None:
    control = parse_options({"bootstrap.servers": "a:9092, b:9093", "client.id": "etl"}).control
    assert control == {"bootstrap_servers": ["a:9092", "b:9093"], "client_id": "etl"}


def test_sasl_is_translated_for_control() -> None:
    assert parse_options({**TLS_AND_SASL, "socket.timeout.ms": "7000"}).control == {
        "bootstrap_servers": ["broker:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": SECRET,
        "request_timeout_ms": 7000,
    }


# Secrets (invariant 8). -----------------------------------------------------------------------------------------------


def test_a_repr_hides_every_property() -> None:
    options = parse_options(TLS_AND_SASL)
    assert SECRET not in repr(options)
    assert "alice" not in repr(options)
    assert SECRET not in repr(KafkaSink(TLS_AND_SASL))


def test_a_refusal_for_another_reason_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for wrong in (
        {"linger.ms": "soon"},
        {"sasl.mechanism": "unheard-of"},
        {"ssl.ca.location": "/no/such/file"},
        {"ssl.key.location": "/no/such/file", "ssl.key.password": SECRET},
        {"topic": ""},
        {"delivery": "twice"},
    ):
        with pytest.raises(ConfigurationError) as refused:
            parse_options(TLS_AND_SASL | wrong)
        shown = [str(refused.value), repr(refused.value.__cause__), repr(refused.value.__context__), caplog.text]
        assert SECRET not in "".join(shown)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"two.phase.commit": "yes", "writer": "arrow"}, "'two.phase.commit' of the kafka sink must be one of auto"),
        ({"two.phase.commit": "auto", "writer": "librdkafka"}, "'two.phase.commit' = 'auto' is only for 'writer'"),
        ({"two.phase.commit": "require", "delivery": "none"}, "'two.phase.commit' = 'require' is only for 'writer'"),
        ({"writer": "arrow", "delivery": "none"}, "'writer' = 'arrow' is only for 'delivery' = 'exactly-once'"),
        (
            {"writer": "arrow", "linger.ms": 5},
            "'linger.ms' is an option of librdkafka that the arrow writer does not support",
        ),
        ({"writer": "arrow", "partitioner": "consistent"}, "'partitioner' can't be set with 'writer' = 'arrow'"),
        (
            {"writer": "arrow", "compression.type": "gzip", "compression.level": 11},
            "'compression.level' = 11 is not supported with",
        ),
        ({"writer": "java"}, "'writer' of the kafka sink must be one of librdkafka, arrow"),
    ],
)
def test_what_a_writer_can_not_honor_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    assert told in refusal(**options)


def test_a_sink_that_serves_two_queries_shares_nothing_that_one_of_them_has_seen() -> None:
    sink = KafkaSink({"bootstrap.servers": "x:1", "topic": "orders"})
    one, other = sink.unbound(), sink.unbound()
    shared = {name for name, value in vars(one).items() if value is vars(other)[name]}
    assert shared == {"_options", "prefix", "_visible", "_refusal"}  # values that never change


@pytest.mark.parametrize("writer", WRITERS)
def test_with_upsert_by_all_records_of_a_key_must_reach_one_partition(writer: str) -> None:
    given = {**SERVERS, "topic": "t", "writer": writer, "upsert_by": "key"}
    assert parse_options(given).upsert_by == ("key",)
    assert parse_options({**given, "writer": "librdkafka", "partitioner": "consistent"}).upsert_by == ("key",)
    with pytest.raises(ConfigurationError, match=r"'upsert_by' needs a 'partitioner' .* Use one of murmur2_random"):
        parse_options({**given, "partitioner": "random"})
