"""Tokens for SASL OAUTHBEARER, for all clients of a process: fetched from a provider, cached, and renewed.

The provider is the one that ``sasl.token.provider`` names, or the issuer's endpoint (``oidc``). With an endpoint,
librdkafka fetches its own tokens.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, Protocol, TypeAlias

import kafka.errors

from twopc.errors import ConfigurationError, OperatorRequired, Retriable, TwoPhaseCommitError
from twopc.options import did_you_mean
from twopc_kafka.client import oidc
from twopc_kafka.client.kafka_python import AbstractTokenProvider

logger = logging.getLogger(__name__)

OAUTHBEARER = "OAUTHBEARER"

PROVIDER = "sasl.token.provider"
PREFIX = "sasl.token."
_GROUP = "twopc_kafka.tokens"
_SHIPPED = {
    "aws": "twopc_kafka.token_providers:aws",
    "azure": "twopc_kafka.token_providers:azure",
    "google": "twopc_kafka.token_providers:google",
}

OPTIONS = (PROVIDER, *oidc.OPTIONS)

TIMEOUT_S = 30.0
"""How long a provider may take. Callers that need a token repeat the call."""

RENEWAL_WAIT_S = 1.0
"""How long to wait for a renewal while the current token is still valid."""

RENEWED_AFTER = 0.8
"""The fraction of a token's lifetime after which it is renewed. kafka-python reauthenticates a connection after 0.85 to
0.95 of the lifetime that the token had left at login (KIP-368), and librdkafka after 0.8 of it. By then the token is
due for renewal, so the connection gets a newer one."""


@dataclass(frozen=True)
class Token:
    """A token, as a provider returns it.

    Attributes:
        value: the text that is sent to the broker.
        expires_at_s: when it expires, in seconds since the epoch.
        principal: for librdkafka's log; the broker reads it from the token.
        extensions: names and values of SASL extensions (RFC 7628, 3.1).
    """

    value: str = field(repr=False)
    expires_at_s: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


Fetch: TypeAlias = Callable[[], Token]


class TokenProvider(Protocol):
    """A token provider, as ``sasl.token.provider`` names it: a class, or a function that returns ``fetch``.

    The driver and each executor's process call it with the sink's options, so the provider itself is never pickled.
    """

    def __call__(self, options: Mapping[str, str], servers: Sequence[str], /) -> Fetch:
        """Return a function that fetches a token. Do not connect to anything yet.

        Args:
            options: the sink's options that begin with ``sasl.token.``, without that prefix and without ``provider``.
            servers: the addresses in 'bootstrap.servers', each ``host:port``.

        The function is called on any thread, by one caller at a time. It may raise OperatorRequired if an operator
        must act. Any other error counts as temporary, and only its type is shown.

        Raises:
            ConfigurationError: an option is wrong or missing.
        """


def is_token_option(name: str) -> bool:
    """Return whether an option configures tokens. A provider's options may have any name after the prefix."""
    return name in OPTIONS or name.startswith(PREFIX)


def check_tokens(mechanism: object, properties: Mapping[str, Any]) -> None:
    """Refuse options with which no token can be fetched.

    Raises:
        ConfigurationError: an option is wrong or missing. The error names the option, never its value.
    """
    for name in properties:
        if mechanism != OAUTHBEARER and name.startswith((PREFIX, oidc.PREFIX)):
            raise ConfigurationError(f"{name!r} is only for 'sasl.mechanism' = {OAUTHBEARER!r}", option=name)
        if PROVIDER in properties and name in oidc.OPTIONS:
            raise ConfigurationError(f"{name!r} has no effect with {PROVIDER!r}: leave one of them out", option=name)
        if PROVIDER not in properties and name.startswith(PREFIX):
            raise ConfigurationError(f"{name!r} needs {PROVIDER!r}", option=PROVIDER)
    if mechanism == OAUTHBEARER and PROVIDER in properties:
        _provider_of(properties)
    elif mechanism == OAUTHBEARER:
        oidc.check(properties, PROVIDER)


def tokens_of(properties: Mapping[str, Any]) -> Tokens:
    """Return the tokens for checked properties. All connections of a process share them."""
    names = ["bootstrap.servers", *sorted(name for name in properties if is_token_option(name))]
    tokens = _tokens(tuple((name, str(properties[name])) for name in names))
    tokens.provider()  # created here: the connections' thread would take an error for a lost broker
    return tokens


def require_token(properties: Mapping[str, Any]) -> None:
    """Fetch a valid token, if connections with these properties (kafka-python's) log in with one.

    Raises:
        Retriable: no token is available now.
        OperatorRequired: the provider refuses this client.
    """
    tokens = properties.get("sasl_oauth_token_provider")
    if tokens is not None:
        tokens.valid_token()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A provider's current token, fetched again when it is due for renewal. Safe to use from several threads.

    A forked process begins without a token. Upholds: it never waits for a lock or a thread of its parent.
    """

    def __init__(self, name: str, make: Callable[[], Fetch]) -> None:
        self._name = name
        self._make = make
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._fetch: Fetch | None = None  # a parent's provider may hold connections that its child can't use
        self._fetching = threading.Lock()
        self._under_way: _Attempt | None = None
        self._token = Token("", 0.0)
        self._renewed_at_s = self._ends_at_s = 0.0  # by time.monotonic

    def provider(self) -> Fetch:
        """Return this process's provider. Raises what its constructor raises."""
        self._fetch = self._fetch or self._make()
        return self._fetch

    def token(self) -> str:
        """Return a token to kafka-python, which treats a ``KafkaConnectionError`` as a lost connection."""
        try:
            return self.valid_token().value
        except TwoPhaseCommitError as error:
            raise kafka.errors.KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        return dict(self._token.extensions)

    def for_librdkafka(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return a token, in the form of confluent-kafka's ``oauth_cb``."""
        token = self.valid_token()
        return token.value, token.expires_at_s, token.principal, dict(token.extensions)

    def valid_token(self) -> Token:
        """Return a token, renewed if it is due. If the renewal takes longer than ``RENEWAL_WAIT_S`` or fails, return
        the current token while it is valid: kafka-python asks on the thread that serves all connections. Raises like
        ``require_token``."""
        with self._fetching:
            if time.monotonic() >= self._renewed_at_s:
                is_usable = time.monotonic() < self._ends_at_s
                try:
                    self._renew(RENEWAL_WAIT_S if is_usable else TIMEOUT_S)
                except TwoPhaseCommitError as error:
                    if not is_usable:
                        raise
                    logger.warning("the token is not renewed yet; the one before is used until it expires: %s", error)
            return self._token

    def _renew(self, timeout_s: float) -> None:
        attempt = self._under_way = self._under_way or _Attempt(self.provider())
        if not wait([attempt.token], timeout_s).done:
            raise self._no_token(f"it has not returned within {timeout_s:g} s")
        self._under_way = None
        self._token = self._check(attempt)
        life_s = self._token.expires_at_s - attempt.began_at_s
        self._renewed_at_s = attempt.began_s + RENEWED_AFTER * life_s
        self._ends_at_s = attempt.began_s + life_s

    def _check(self, attempt: _Attempt) -> Token:
        match attempt.token.exception():
            case ConfigurationError() | OperatorRequired() | Retriable() as error:
                raise error
            case BaseException() as error:
                raise self._no_token(f"it raised {type(error).__module__}.{type(error).__qualname__}")
        token = attempt.token.result()
        if not isinstance(token, Token) or not str(token.value).isascii():
            raise self._no_token("it returned no twopc_kafka.Token with text in ASCII")
        if not token.value or not token.value.isprintable():
            raise self._no_token("it returned an empty token, or one with a control character")
        if not token.expires_at_s >= attempt.began_at_s:
            raise self._no_token("its token has expired already. Is this machine's clock right?")
        return token

    def _no_token(self, reason: str) -> Retriable:
        return Retriable(
            f"{self._name} returned no token: {reason}. Does this process have the credentials that it needs?"
        )


class _Attempt:
    """A call of a provider, on its own thread because it may never return."""

    def __init__(self, fetch: Fetch) -> None:
        self.token: Future[object] = Future()
        self.began_s, self.began_at_s = time.monotonic(), time.time()
        threading.Thread(target=self._run, args=[fetch], name="twopc-kafka-token", daemon=True).start()

    def _run(self, fetch: Fetch) -> None:
        try:
            self.token.set_result(fetch())
        except BaseException as error:  # noqa: BLE001  # the caller raises another error, without this one's text
            self.token.set_exception(error)


@functools.cache
def _tokens(properties: tuple[tuple[str, str], ...]) -> Tokens:
    given = dict(properties)
    if PROVIDER not in given:
        return Tokens("the token endpoint", lambda: functools.partial(_from_endpoint, oidc.Endpoint(given)))
    return Tokens(f"the token provider {given[PROVIDER]!r}", lambda: _provider_of(given))


def _from_endpoint(endpoint: oidc.Endpoint) -> Token:
    asked_at_s = time.time()
    value, life_s = endpoint.fetch()
    return Token(value, asked_at_s + life_s, extensions=endpoint.extensions)


def _provider_of(properties: Mapping[str, Any]) -> Fetch:
    options = {name.removeprefix(PREFIX): str(value) for name, value in properties.items() if name.startswith(PREFIX)}
    name = options.pop(PROVIDER.removeprefix(PREFIX))
    servers = str(properties.get("bootstrap.servers", "")).split(",")
    return _named(name)(options, servers)


def _named(name: str) -> TokenProvider:
    found = EntryPoint(name, _SHIPPED.get(name, name), _GROUP)
    if ":" not in found.value:
        registered = importlib.metadata.entry_points(group=_GROUP)
        if name not in registered.names:
            known = [*_SHIPPED, *registered.names]
            raise ConfigurationError(
                f"{PROVIDER!r} must be one of {', '.join(known)}, or a path such as 'package.module:name'."
                f"{did_you_mean(name, known)}",
                option=PROVIDER,
            )
        found = registered[name]
    try:
        provider: TokenProvider = found.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{PROVIDER!r} = {name!r} can't be imported: {error}. The driver and the executors need it",
            option=PROVIDER,
        ) from error
    return provider
