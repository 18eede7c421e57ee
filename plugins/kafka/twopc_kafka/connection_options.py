"""Connection options, which both clients must honor alike: the brokers' addresses, TLS and the login.

librdkafka's options are translated for kafka-python. Both clients must reach the same brokers as the same principal, so
an option that only one of them could honor is refused, not ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Kind, Option, wrong_value
from twopc_kafka import key_stores
from twopc_kafka.client.tokens import OAUTHBEARER, PREFIX, PROVIDER, check_tokens, is_token_option, tokens_of
from twopc_kafka.client.tokens import OPTIONS as TOKEN_OPTIONS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = (*_BY_PASSWORD, "GSSAPI", OAUTHBEARER)

# librdkafka's name → kafka-python's name and type.
_CONTROL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda text: text.split(",")),
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", str.upper),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "socket.timeout.ms": ("request_timeout_ms", int),
}

_FOR_DATA_ONLY = ("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list")

NAMES = (*_CONTROL, *key_stores.OPTIONS, *TOKEN_OPTIONS)
"""The connection options, except those of a token provider, which may have any name."""

_ANSWERS = {
    "ssl.keystore.certificate.chain": f"{key_stores.CERTIFICATE!r}",
    "ssl.keystore.key": f"{key_stores.KEY!r}",
    "ssl.keystore.type": f"{key_stores.KEY_STORE!r} alone: its content shows the type",
    "ssl.truststore.certificates": f"{key_stores.AUTHORITY!r}",
    "ssl.truststore.type": f"{key_stores.TRUST_STORE!r} alone: its content shows the type",
    "sasl.jaas.config": "'sasl.username' and 'sasl.password'",
    "sasl.login.callback.handler.class": "'sasl.token.provider'",
    "sasl.client.callback.handler.class": "'sasl.token.provider'",
    "sasl.oauthbearer.config": "'sasl.token.provider'",
}
"""Options of the Java client and Spark → what to use here."""

_FIXED_VALUES = {
    "security.protocol": PROTOCOLS,
    "sasl.mechanism": _MECHANISMS,
    "ssl.endpoint.identification.algorithm": ("HTTPS", "NONE"),
}

_ADDRESS = re.compile(
    r"""(?: (?P<scheme> \w+ ) :// )?
    (?P<host> \[ [0-9A-Fa-f:]+ (?: % [A-Za-z0-9._~-]+ )? \] | [A-Za-z0-9._-]+ )
    (?: : (?P<port> [0-9]{1,5} ) )?""",
    re.VERBOSE,
)
_PORT = 9092


def _addresses(given: Any) -> str:
    """Return the addresses as ``host:port,host:port``, the only form that both clients read alike. librdkafka takes a
    port modulo 65536 and blanks as part of a host. kafka-python drops a scheme, and takes an empty address for
    localhost. Schemes are kept for the comparison with 'security.protocol'."""
    found = [_ADDRESS.fullmatch(address.strip()) for address in re.sub(r",\s*$", "", str(given)).split(",")]
    addresses = []
    for address in found:
        if not address or not 0 < (port := int(address["port"] or _PORT)) < 65536:
            raise ValueError
        if address["scheme"] and address["scheme"].upper() not in PROTOCOLS:
            raise ValueError
        scheme = f"{address['scheme'].upper()}://" if address["scheme"] else ""
        addresses.append(f"{scheme}{address['host']}:{port}")
    return ",".join(dict.fromkeys(addresses))


OTHER_SERVERS = "it is librdkafka's other name for 'bootstrap.servers': use the latter"

SERVERS = Option(
    "bootstrap.servers",
    Kind(
        "addresses",
        "addresses such as broker1:9092,broker2:9092 or [::1]:9092, with a port of 1 to 65535",
        _addresses,
    ),
    "",
    needed=True,
)


def checked(owner: str, servers: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Check the connection options among ``properties``.

    Args:
        owner: the sink, for errors.
        servers: the addresses, as ``SERVERS`` has parsed them.
        properties: librdkafka's options, without aliases.

    Returns:
        The properties for librdkafka, with addresses that both clients read alike.

    Raises:
        ConfigurationError: an option is wrong, or has no effect. The error names it, and shows no secret.
    """
    for name, value in properties.items():
        _refuse_what_control_cannot_honor(owner, name)
        if name in _FIXED_VALUES and str(value).upper() not in _FIXED_VALUES[name]:
            raise wrong_value(owner, name, f"one of {', '.join(_FIXED_VALUES[name])}")
    protocol = str(properties.get("security.protocol", PROTOCOLS[0])).upper()
    layers = protocol.split("_")
    _refuse_another_protocol(owner, servers, protocol)
    for name in properties:
        layer = name.partition(".")[0].upper()
        if layer in ("SSL", "SASL") and layer not in layers:
            raise ConfigurationError(
                f"{name!r} of {owner} has no effect with 'security.protocol' = {protocol!r}. Set 'security.protocol' to"
                f" one with {layer}, such as 'SASL_SSL', or leave {name!r} out.",
                option=name,
            )
    mechanism = str(properties.get("sasl.mechanism", "")).upper()
    given = {**properties, "bootstrap.servers": re.sub(r"\w+://", "", servers)}
    if mechanism:
        given["sasl.mechanism"] = mechanism
    check_tokens(mechanism, given)
    if "SASL" in layers:
        _require_login(owner, mechanism, given)
    for name, value in given.items():
        if name.endswith(".location") and value and not os.access(str(value), os.R_OK):
            raise wrong_value(owner, name, "a file that this process may read")
    return key_stores.as_pem(given)


def control(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Translate checked ``properties`` for kafka-python."""
    translated = {
        name: convert(str(properties[source])) for source, (name, convert) in _CONTROL.items() if source in properties
    }
    if translated.get("sasl_mechanism") == OAUTHBEARER:
        translated["sasl_oauth_token_provider"] = tokens_of(properties)
    if context := key_stores.context_of(properties):
        translated["ssl_context"] = context
    return translated


def for_librdkafka(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Translate checked ``properties`` for librdkafka. Fetch a token if they name a token provider.

    Raises:
        Retriable: no token is available now. librdkafka would only log why.
        OperatorRequired: the provider refuses this client.
    """
    given = {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
    if PROVIDER in properties:
        tokens = tokens_of(properties)
        tokens.valid_token()
        given["oauth_cb"] = tokens.for_librdkafka
    return given


def unusable_here(owner: str, message: str) -> ConfigurationError:
    """Return the error for checked options that librdkafka can't use on this host. librdkafka's own error quotes
    values, which may be secrets. The returned error leaves them out, and must not be raised from librdkafka's."""
    without_values = re.sub(r'"[^"]*"', '"..."', message.strip())
    return ConfigurationError(f"librdkafka can't use the options of {owner} on this host: {without_values}")


def is_known(name: str) -> bool:
    """Return whether both clients support an option of this name."""
    return name in NAMES or is_token_option(name)


def is_security(name: str) -> bool:
    """Return whether a name looks like an option of TLS or the login, even if no such option exists."""
    return name.startswith(("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https."))


def _refuse_what_control_cannot_honor(owner: str, name: str) -> None:
    if name in _ANSWERS:
        raise ConfigurationError(f"{owner} has no option {name!r}: use {_ANSWERS[name]}.", option=name)
    if is_security(name) and name not in _FOR_DATA_ONLY and not is_known(name):
        known = ", ".join(sorted(known for known in NAMES if known.startswith(("ssl.", "sasl.", "https."))))
        raise ConfigurationError(
            f"{name!r} can't be used, because the sink's control connection does not support it. Use one of {known}.",
            option=name,
        )


def _refuse_another_protocol(owner: str, servers: str, protocol: str) -> None:
    """Refuse an address whose scheme contradicts ``protocol``. The clients would ignore the scheme, and write in plain
    text or without a login."""
    for address in servers.split(","):
        scheme, is_given, _ = address.partition("://")
        if is_given and scheme != protocol:
            raise ConfigurationError(
                f"'bootstrap.servers' of {owner} has an address that begins with {scheme}://, but the connection would"
                f" use 'security.protocol' = {protocol!r}. Set 'security.protocol' to {scheme!r}, or take the scheme"
                " off the address.",
                option="security.protocol",
            )


def _require_login(owner: str, mechanism: str, properties: Mapping[str, Any]) -> None:
    for name in ("sasl.mechanism", *(("sasl.password", "sasl.username") if mechanism in _BY_PASSWORD else ())):
        if not properties.get(name):
            login = f"'sasl.mechanism' = {mechanism!r}" if mechanism else "a 'security.protocol' with SASL"
            raise ConfigurationError(f"{owner} with {login} needs the option {name!r}.", option=name)
