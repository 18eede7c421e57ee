"""Tokens for OAUTHBEARER: how they are fetched and renewed, and what their endpoint's answers mean."""

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import importlib.metadata
import json
import logging
import multiprocessing
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import azure.identity
import google.auth
import google.oauth2.credentials
import kafka.errors
import pytest
import trustme
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from google.auth import compute_engine, external_account, impersonated_credentials
from google.oauth2 import service_account

from tests.sinks.kafka.issuer import Issuer
from tests.support.waiting import until
from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc_kafka import KafkaSink, Token, token_providers
from twopc_kafka.client import tokens
from twopc_kafka.connection_options import for_librdkafka
from twopc_kafka.options import parse_options

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
    provider = tokens.tokens_of(options)
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
    provider = tokens.tokens_of(options)
    assert [provider.token(), provider.token()] == ["opaque", "opaque"]
    assert len(issuer.forms) == 2


def test_scope_and_extensions_go_where_they_belong(issuer: Issuer, options: dict[str, str]) -> None:
    more = {"sasl.oauthbearer.scope": "a b", "sasl.oauthbearer.extensions": "tenant=x=y, region=emea"}
    provider = tokens.tokens_of(options | more)
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
    provider = tokens.tokens_of(options)
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
        ({"sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/t?k=v"}, "https://127.0.0.1:1/t returned no"),
        ({"https.ca.location": ""}, "CERTIFICATE_VERIFY_FAILED.*'https.ca.location'"),
        ({"https.ca.location": "/no/such/file"}, "FileNotFoundError"),
    ],
)
def test_an_endpoint_that_can_not_be_reached_is_asked_again(
    changed: dict[str, str], told: str, options: dict[str, str]
) -> None:
    provider = tokens.tokens_of(options | changed)
    with pytest.raises(Retriable, match=told):
        provider.valid_token()


# Providers. -----------------------------------------------------------------------------------------------------------


class Clock:
    """A provider whose tokens are numbered, and live for ``life_s`` from ``time.time`` on."""

    life_s = 100.0
    fails_with: BaseException | None = None
    waits_for = threading.Event()
    given = 0

    def __init__(self, options: Mapping[str, str], servers: Sequence[str]) -> None:
        assert (options, servers) == ({"tenant": "sales"}, ["127.0.0.1:1"])

    def __call__(self) -> Token:
        self.waits_for.wait(10)
        if self.fails_with:
            raise self.fails_with
        type(self).given += 1
        return Token(f"token-{self.given}", time.time() + self.life_s, "etl", {"tenant": "sales"})


PROVIDER = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.token.provider": f"{__name__}:Clock",
    "sasl.token.tenant": "sales",
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Clock.__module__])
    monkeypatch.setattr(Clock, "given", 0)
    Clock.waits_for.set()
    tokens._tokens.cache_clear()
    return Clock


@pytest.mark.usefixtures("clock")
def test_both_clients_get_the_token_of_one_provider_and_librdkafka_no_option_of_it() -> None:
    options = parse_options(PROVIDER)
    for_kafka_python = options.control["sasl_oauth_token_provider"]
    assert (for_kafka_python.token(), for_kafka_python.extensions()) == ("token-1", {"tenant": "sales"})
    [value, expires_at_s, principal, extensions] = tokens.tokens_of(options.properties).for_librdkafka("")
    assert (value, principal, extensions) == ("token-1", "etl", {"tenant": "sales"})
    assert 95 < expires_at_s - time.time() <= 100
    assert not [name for name in for_librdkafka(options.properties) if "token" in name]
    KafkaSink(pickle.loads(pickle.dumps({**PROVIDER, "topic": "orders"})))  # noqa: S301


def test_a_provider_that_can_not_be_made_is_refused_before_anything_is_connected_to() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.token\.provider"):
        tokens.tokens_of(PROVIDER | {"sasl.token.provider": "no.such.module:Provider"})


def test_a_provider_is_found_by_its_entry_point(clock: type[Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    registered = EntryPoints([EntryPoint("ours", f"{__name__}:Clock", "twopc_kafka.tokens")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: registered.select(group=group))
    assert tokens.tokens_of(PROVIDER | {"sasl.token.provider": "ours"}).token() == f"token-{clock.given}"


def renewed(kept: tokens.Tokens) -> str:
    with contextlib.suppress(Retriable):
        return kept.valid_token().value
    return ""


def test_a_token_is_used_while_its_renewal_fails_or_hangs_and_not_after_its_end(
    clock: type[Clock], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "RENEWAL_WAIT_S", 0.02)
    monkeypatch.setattr(tokens, "TIMEOUT_S", 0.05)
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    kept = tokens.tokens_of(PROVIDER)
    assert kept.token() == "token-1"
    monkeypatch.setattr(clock, "fails_with", RuntimeError(SECRET))
    now_s += 81
    assert kept.token() == "token-1"
    assert "raised builtins.RuntimeError" in caplog.text
    clock.waits_for.clear()
    assert kept.token() == "token-1"
    assert "it has not returned within 0.02 s" in caplog.text
    now_s += 20
    with pytest.raises(kafka.errors.KafkaConnectionError, match=f"{__name__}:Clock' returned no token: it has not"):
        kept.token()
    clock.waits_for.set()
    monkeypatch.setattr(clock, "fails_with", None)
    until(lambda: renewed(kept).startswith("token-"))  # the attempt that hung may have come to nothing
    assert SECRET not in caplog.text


@pytest.mark.crash
def test_a_process_that_is_forked_amid_a_renewal_gets_a_token_of_its_own(clock: type[Clock]) -> None:
    kept = tokens.tokens_of(PROVIDER)
    clock.waits_for.clear()
    asking = threading.Thread(target=kept.token, daemon=True)
    asking.start()
    until(lambda: kept._under_way is not None)

    def ask() -> None:
        clock.waits_for.set()
        kept.valid_token()

    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    child.join(10)
    clock.waits_for.set()
    asking.join()
    child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (Token("", 9e9), "empty"),
        (Token("a\x01auth=b", 9e9), "control character"),
        (Token("ü", 9e9), "ASCII"),
        (Token("a", 0.0), "expired already"),
        (Token("a", float("nan")), "expired already"),
        ("a", r"no twopc_kafka\.Token"),
        (None, r"no twopc_kafka\.Token"),
    ],
)
def test_what_is_no_token_is_never_sent(token: Any, told: str) -> None:
    with pytest.raises(Retriable, match=f"the token provider returned no token: .*{told}"):
        tokens.Tokens("the token provider", lambda: lambda: token).valid_token()


def test_a_repr_shows_no_token() -> None:
    assert SECRET not in repr(Token(SECRET, 0.0))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sasl.token.provider": "asure"}, "one of aws, azure, google.*Did you mean 'azure'"),
        ({"sasl.token.provider": "no.such:Provider"}, "'no.such:Provider' can't be imported: No module named 'no'"),
        ({"sasl.token.provider": f"{__name__}:Nobody"}, "can't be imported: .*Nobody"),
        ({"sasl.token.provider": ":Provider"}, "':Provider' can't be imported"),
        ({"sasl.oauthbearer.client.id": "etl"}, "no effect with 'sasl.token.provider'"),
        ({"sasl.mechanism": "PLAIN"}, "is only for 'sasl.mechanism' = 'OAUTHBEARER'"),
        ({"sasl.token.provider": "azure"}, "the token provider 'azure' .* no option 'tenant'"),
        ({"sasl.token.provider": "aws", "sasl.token.tenant": None}, "needs 'sasl.token.region'"),
        (
            {
                "sasl.token.provider": "aws",
                "sasl.token.tenant": None,
                "sasl.token.region": "x",
                "sasl.token.profile": "a",
                "sasl.token.role.arn": "b",
            },
            "one of 'sasl.token.profile' and 'sasl.token.role.arn'",
        ),
    ],
)
def test_options_of_a_provider_are_checked_before_anything_is_connected_to(wrong: dict[str, Any], told: str) -> None:
    given = {name: value for name, value in (PROVIDER | wrong).items() if value is not None}
    with pytest.raises(ConfigurationError, match=told):
        parse_options(given)


AWS_SERVER = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"


def signed_parts(token: str) -> tuple[str, dict[str, str]]:
    """The host and the query of the presigned request that a token of MSK is."""
    assert "=" not in token
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert (url.scheme, url.path) == ("https", "/")
    return url.netloc, dict(parse_qsl(url.query, strict_parsing=True))


def test_a_token_for_msk_is_a_request_to_connect_that_is_signed_as_aws_documents_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"session-{SECRET}")
    token = token_providers.aws({}, [AWS_SERVER])()
    host, query = signed_parts(token.value)
    assert host == "kafka.eu-west-1.amazonaws.com"
    signature, agent = query.pop("X-Amz-Signature"), query.pop("User-Agent")
    assert agent.startswith("aws-msk-iam-sasl-signer-python/")
    day = query["X-Amz-Date"][:8]
    assert query == {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"AKIDEXAMPLE/{day}/eu-west-1/kafka-cluster/aws4_request",
        "X-Amz-Date": query["X-Amz-Date"],
        "X-Amz-Expires": "900",
        "X-Amz-Security-Token": f"session-{SECRET}",
        "X-Amz-SignedHeaders": "host",
    }
    canonical = "&".join(f"{quote(name, '')}={quote(value, '')}" for name, value in sorted(query.items()))
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    scope = f"{day}/eu-west-1/kafka-cluster/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    assert signature == key.hex()
    assert 895 < token.expires_at_s - time.time() <= 900
    assert signature not in caplog.text
    assert SECRET not in caplog.text


def test_a_role_is_assumed_by_one_name_each_time_as_msk_refuses_another_principal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def by_role(*given: str) -> tuple[str, int]:
        asked.append(given)
        return "signed", int(time.time() * 1000) + 900_000

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token_from_role_arn", by_role)
    for options in ({}, {}, {"session.name": "orders"}):
        token_providers.aws({"role.arn": "arn:aws:iam::1:role/etl", **options}, [AWS_SERVER])()
    assert asked == [("eu-west-1", "arn:aws:iam::1:role/etl", name) for name in ("twopc", "twopc", "orders")]


@pytest.mark.parametrize(
    ("options", "scope"),
    [({}, "https://ns.servicebus.windows.net/.default"), ({"scope": "api://other/.default"}, "api://other/.default")],
)
def test_a_token_for_event_hubs_is_for_the_namespace_of_the_address(
    options: dict[str, str], scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Credential:
        def __init__(self, managed_identity_client_id: str | None) -> None:
            asked.append(managed_identity_client_id)

        def get_token(self, scope: str) -> SimpleNamespace:
            asked.append(scope)
            return SimpleNamespace(token="a.b.c", expires_on=9_000_000_000)  # noqa: S106

    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Credential)
    provider = token_providers.azure(options, ["ns.servicebus.windows.net:9093", "other:9093"])
    assert [provider(), provider()] == [Token("a.b.c", 9_000_000_000)] * 2
    assert asked == [None, scope, scope]  # one credential, which keeps its own connections


def google_credentials(**account: str) -> Any:
    """Credentials of one of google.auth's kinds, of which each has another attribute for its account."""

    class Credentials(SimpleNamespace):
        def refresh(self, _: object) -> None:
            self.token = "ya29.access"  # noqa: S105
            self.expiry = dt.datetime(2100, 1, 1)  # noqa: DTZ001  # google.auth's have no zone
            vars(self).update(account)  # those of a metadata server are not known before

    return Credentials(service_account_email="default" if account else None)


def test_the_credentials_of_google_auth_have_their_account_where_it_is_looked_for() -> None:
    for kind in (service_account, compute_engine, impersonated_credentials, external_account):
        assert hasattr(kind.Credentials, "service_account_email")
    assert hasattr(google.oauth2.credentials.Credentials, "account")


@pytest.mark.parametrize(
    ("account", "options", "principal"),
    [
        ({"service_account_email": "etl@p.iam.gserviceaccount.com"}, {}, "etl@p.iam.gserviceaccount.com"),  # metadata
        ({"signer_email": "etl@p.iam.gserviceaccount.com"}, {}, "etl@p.iam.gserviceaccount.com"),
        ({"account": "me@example.org"}, {}, "me@example.org"),
        ({}, {"principal": "etl@p.iam.gserviceaccount.com"}, "etl@p.iam.gserviceaccount.com"),  # workload identity
        ({}, {}, None),
    ],
)
def test_a_token_for_google_wraps_the_access_token_with_the_real_account(
    account: dict[str, str], options: dict[str, str], principal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google.auth, "default", lambda scopes: (google_credentials(**account), "project"))
    provider = token_providers.google(options, ["bootstrap.c.europe-west1.managedkafka.p.cloud.goog:9092"])
    if principal is None:
        with pytest.raises(ConfigurationError, match=r"Set 'sasl\.token\.principal'"):
            provider()
        return
    token = provider()
    assert "=" not in token.value
    header, claims, access = (base64.urlsafe_b64decode(f"{part}===").decode() for part in token.value.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    told = json.loads(claims)
    assert (told.pop("iat") < time.time() + 1, told) == (
        True,
        {"exp": 4102444800.0, "iss": "Google", "scope": "kafka", "sub": principal},
    )
    assert (access, token.expires_at_s) == ("ya29.access", 4102444800.0)
