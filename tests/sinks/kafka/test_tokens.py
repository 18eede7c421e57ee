"""Tokens for OAUTHBEARER: how they are fetched and renewed, and what their endpoint's answers mean."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import kafka.errors
import pytest
import trustme

from tests.sinks.kafka.issuer import Issuer
from twopc.errors import OperatorRequired, Retriable
from twopc_kafka import KafkaSink
from twopc_kafka.client import tokens

SECRET = "hunter2-is-the-secret"  # noqa: S105  # what must not be seen anywhere

AUTHORITY = trustme.CA()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(AUTHORITY, {"etl": SECRET}) as issuer:
        yield issuer


@pytest.fixture
def options(issuer: Issuer, tmp_path: Path) -> dict[str, str]:
    AUTHORITY.cert_pem.write_to_path(tmp_path / "authority.pem")
    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "etl",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": issuer.url,
        "https.ca.location": str(tmp_path / "authority.pem"),
    }


def test_a_token_is_fetched_once_for_most_of_its_life(
    issuer: Issuer, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    provider = tokens.token_provider(options)
    first = provider.token()
    now_s += issuer.life_s * 0.79
    assert provider.token() == first
    assert len(issuer.forms) == 1
    now_s += issuer.life_s * 0.02
    provider.token()
    assert len(issuer.forms) == 2


def test_a_token_that_does_not_tell_its_life_is_fetched_for_every_login(
    issuer: Issuer, options: dict[str, str]
) -> None:
    issuer.answer = 200, b'{"access_token": "opaque"}'
    provider = tokens.token_provider(options)
    assert [provider.token(), provider.token()] == ["opaque", "opaque"]
    assert len(issuer.forms) == 2


def test_scope_and_extensions_go_where_they_belong(issuer: Issuer, options: dict[str, str]) -> None:
    more = {"sasl.oauthbearer.scope": "a b", "sasl.oauthbearer.extensions": "tenant=x=y, region=emea"}
    provider = tokens.token_provider(options | more)
    provider.token()
    assert issuer.forms == [{"grant_type": "client_credentials", "scope": "a b"}]
    assert provider.extensions() == {"tenant": "x=y", "region": "emea"}


def test_a_sink_asks_for_no_token_when_it_is_made(issuer: Issuer, options: dict[str, str]) -> None:
    KafkaSink(options | {"topic": "orders"})
    assert issuer.forms == []


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        ((401, b'{"error": "invalid_client"}'), OperatorRequired, "401, invalid_client.*client.secret'"),
        (
            (400, b'{"error": "invalid_scope"}'),
            OperatorRequired,
            "400, invalid_scope.*Correct 'sasl.oauthbearer.scope'",
        ),
        ((400, b'{"error": "unauthorized_client"}'), OperatorRequired, "Allow this client the grant type"),
        ((400, json.dumps({"error": SECRET}).encode()), OperatorRequired, r"\(400\).*token.endpoint.url'"),
        ((403, b"<html>"), OperatorRequired, r"\(403\)"),
        ((404, b'[["error"]]'), OperatorRequired, r"\(404\)"),
        ((302, b""), OperatorRequired, r"\(302\)"),
        ((429, b""), Retriable, "it answered 429"),
        ((503, SECRET.encode()), Retriable, "it answered 503"),
        ((200, f"<html>{SECRET}".encode()), Retriable, r"no token \(JSONDecodeError\)"),
        ((200, b'{"expires_in": 300}'), Retriable, r"no token \(KeyError\)"),
        ((200, b'{"access_token": "a", "expires_in": NaN}'), Retriable, "no token"),
        ((200, b'{"access_token": "a", "expires_in": 1e999}'), Retriable, "no token"),
        ((200, b'"token"'), Retriable, "no token"),
        ((200, b'{"access_token": null}'), Retriable, "no token"),
    ],
)
def test_what_the_endpoint_answers_is_told_with_what_to_correct_and_without_a_secret(
    answer: tuple[int, bytes],
    error: type[Exception],
    told: str,
    issuer: Issuer,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.answer = answer
    issuer.headers["Location"] = issuer.url
    provider = tokens.token_provider(options)
    with pytest.raises(error, match=told) as raised:
        provider.valid_token()
    assert issuer.url in str(raised.value)
    assert len(issuer.forms) == 1
    seen = [str(raised.value), repr(raised.value.__cause__), caplog.text, repr(provider)]
    assert SECRET not in "".join(seen)
    with pytest.raises(kafka.errors.KafkaConnectionError, match=told):  # what kafka-python knows how to take
        provider.token()


@pytest.mark.variants
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/t?k=v"},
            "https://127.0.0.1:1/t returned no",
        ),
        ({"https.ca.location": ""}, "CERTIFICATE_VERIFY_FAILED.*'https.ca.location'"),
        ({"https.ca.location": "/no/such/file"}, "FileNotFoundError"),
    ],
)
def test_an_endpoint_that_can_not_be_reached_is_asked_again(
    changed: dict[str, str], told: str, options: dict[str, str]
) -> None:
    provider = tokens.token_provider(options | changed)
    with pytest.raises(Retriable, match=told):
        provider.valid_token()
