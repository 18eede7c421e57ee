"""The token providers of ``sasl.token.provider``: ``aws`` for Amazon MSK, ``azure`` for Event Hubs, ``google`` for
Google's Managed Service for Apache Kafka. Each provider finds credentials the way its cloud's own tools do.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import importlib
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Option, parse, refuse_unknown, text
from twopc_kafka.client.tokens import Fetch, Token


def aws(options: Mapping[str, str], servers: Sequence[str]) -> Fetch:
    """Provide tokens for Amazon MSK's IAM access control: connection requests that are signed with AWS credentials.

    MSK refuses to reauthenticate a connection as another principal, and the session's name is part of the principal. So
    with ``role.arn`` the name is always the same. Without it, the credentials determine the name.
    """
    given = _parsed(
        "aws",
        options,
        Option("region", text(), "the cluster's region; by default the one in the first broker's name"),
        Option("profile", text(), "a profile of AWS's configuration, in place of the default credentials"),
        Option("role.arn", text(), "a role to assume"),
        Option("session.name", text(), "the session's name in the principal, with `role.arn`", default="twopc"),
    )
    in_name = re.search(r"\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:", servers[0])
    region = given.get("region") or (in_name[1] if in_name else None)
    if not region:
        raise ConfigurationError(
            "the token provider 'aws' needs 'sasl.token.region', as the first address in 'bootstrap.servers' has no"
            " AWS region",
            option="sasl.token.region",
        )
    profile, role = given.get("profile"), given.get("role.arn")
    if profile and role:
        raise ConfigurationError(
            "the token provider 'aws' takes one of 'sasl.token.profile' and 'sasl.token.role.arn': a profile may"
            " name the role itself",
            option="sasl.token.profile",
        )

    def fetch() -> Token:
        signer = _imported("aws_msk_iam_sasl_signer", "aws").MSKAuthTokenProvider
        with _suppress_debug("botocore.auth", "botocore.parsers", "botocore.endpoint", "botocore.hooks"):
            if role:
                token, expires_at_ms = signer.generate_auth_token_from_role_arn(region, role, given["session.name"])
            elif profile:
                token, expires_at_ms = signer.generate_auth_token_from_profile(region, profile)
            else:
                token, expires_at_ms = signer.generate_auth_token(region)
        return Token(token, expires_at_ms / 1000)

    return fetch


def azure(options: Mapping[str, str], servers: Sequence[str]) -> Fetch:
    """Provide tokens of Microsoft Entra ID for an Event Hubs namespace, or an event stream of Fabric."""
    given = _parsed(
        "azure",
        options,
        Option("scope", text(), "the token's scope; by default the namespace in the first broker's name"),
        Option("client.id", text(), "the client id of a user-assigned managed identity"),
    )
    scope = given.get("scope") or f"https://{servers[0].rpartition(':')[0]}/.default"

    @functools.cache
    def credential() -> Any:
        identity = _imported("azure.identity", "azure")
        return identity.DefaultAzureCredential(managed_identity_client_id=given.get("client.id"))

    def fetch() -> Token:
        found = credential().get_token(scope)
        return Token(found.token, found.expires_on)

    return fetch


def google(options: Mapping[str, str], servers: Sequence[str]) -> Fetch:  # noqa: ARG001
    """Provide tokens for Google's brokers: a header, claims and the access token, each in URL-safe base64."""
    by_default = "the account's address in the token; by default the service account of the default credentials"
    given = _parsed("google", options, Option("principal", text(), by_default))

    @functools.cache
    def credentials() -> Any:
        return _imported("google.auth", "google").default(scopes=("https://www.googleapis.com/auth/cloud-platform",))[0]

    def fetch() -> Token:
        found = credentials()
        # A new token is due now, but credentials keep the old one until shortly before it expires.
        found.refresh(_imported("google.auth.transport.requests", "google").Request())
        principal = given.get("principal") or _account(found)
        expires_at_s = found.expiry.replace(tzinfo=dt.timezone.utc).timestamp()
        claims = {"exp": expires_at_s, "iss": "Google", "iat": time.time(), "scope": "kafka", "sub": principal}
        parts = (json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}), json.dumps(claims), found.token)
        in_base64 = (base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
        return Token(".".join(in_base64), expires_at_s, principal)

    return fetch


def _account(credentials: Any) -> str:
    for name in ("service_account_email", "signer_email", "account"):
        if "@" in (account := str(getattr(credentials, name, ""))):
            return account
    raise ConfigurationError(
        "the token provider 'google' has credentials without an account's address. Set 'sasl.token.principal' to"
        " the address of the account that they belong to.",
        option="sasl.token.principal",
    )


def _parsed(name: str, options: Mapping[str, str], *known: Option) -> dict[str, Any]:
    owner = f"the token provider {name!r} (each with 'sasl.token.' before it)"
    refuse_unknown(owner, options, known)
    return parse(owner, known, options)


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"the token provider {extra!r} needs the extra of this name of twopc-kafka, on the driver and the executors"
            f" ({error}). {_INSTALL[extra]}"
        ) from error


_INSTALL = {
    "aws": "Run pip install 'twopc-kafka[aws]'",
    "azure": "Run pip install 'twopc-kafka[azure]'",
    "google": "Run pip install 'twopc-kafka[google]'",
}


@contextlib.contextmanager
def _suppress_debug(*loggers: str) -> Iterator[None]:
    """Suppress these loggers' DEBUG records, which contain credentials and the signatures that make up a token."""

    def is_no_detail(record: logging.LogRecord) -> bool:  # a filter per call, because calls of threads may overlap
        return record.levelno > logging.DEBUG

    for name in loggers:
        logging.getLogger(name).addFilter(is_no_detail)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(is_no_detail)
