"""The token providers of ``sasl.token.provider``: ``aws`` for Amazon MSK, ``azure`` for Event Hubs, ``google`` for
Google's Managed Service for Apache Kafka. Each finds its credentials as its cloud's own tools do.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import importlib
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Option, parse, refuse_unknown, text
from twopc_kafka.client.tokens import Token

_HOST = re.compile(r"^(?P<host>\[.*\]|[^:]*)(?::\d+)?$")


class Aws:
    """Tokens for Amazon MSK's IAM access control: a request to connect that is signed with AWS credentials.

    MSK refuses to reauthenticate a connection as another principal, and the session's name is a part of it. So with
    ``role.arn`` the name is always the same. Without it, the credentials determine the name.
    """

    OPTIONS = (
        Option("region", text(), "the cluster's region", default_text="the one in the first broker's name"),
        Option("profile", text(), "a profile of AWS's configuration", default_text="the default credentials"),
        Option("role.arn", text(), "a role to assume", default_text="none"),
        Option("session.name", text(), "the session's name in the principal, with `role.arn`", default="twopc"),
    )

    def __init__(self, options: Mapping[str, str], servers: Sequence[str]) -> None:
        values = _parsed("aws", self.OPTIONS, options)
        region = re.search(r"\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:", f"{servers[0]}:")
        self._region: str = values.get("region") or (region[1] if region else "")
        if not self._region:
            raise ConfigurationError(
                "the token provider 'aws' needs 'sasl.token.region', as the first address in 'bootstrap.servers' has no"
                " AWS region",
                option="sasl.token.region",
            )
        self._profile, self._role = values.get("profile"), values.get("role.arn")
        self._session_name = values["session.name"]
        if self._profile and self._role:
            raise ConfigurationError(
                "the token provider 'aws' takes one of 'sasl.token.profile' and 'sasl.token.role.arn': a profile may"
                " name the role itself",
                option="sasl.token.profile",
            )

    def __call__(self) -> Token:
        signer = _imported("aws_msk_iam_sasl_signer", "aws").MSKAuthTokenProvider
        with _silent("botocore.auth", "botocore.parsers", "botocore.endpoint", "botocore.hooks"):
            if self._role:
                token, expires_at_ms = signer.generate_auth_token_from_role_arn(
                    self._region, self._role, self._session_name
                )
            elif self._profile:
                token, expires_at_ms = signer.generate_auth_token_from_profile(self._region, self._profile)
            else:
                token, expires_at_ms = signer.generate_auth_token(self._region)
        return Token(token, expires_at_ms / 1000)


class Azure:
    """Tokens of Microsoft Entra ID for an Event Hubs namespace, or an event stream of Fabric."""

    OPTIONS = (
        Option(
            "scope",
            text(),
            "the scope of the token",
            default_text="the namespace of the first broker's name, such as `https://ns.servicebus.windows.net/.default`",
        ),
        Option("client.id", text(), "the client id of a user-assigned managed identity", default_text="none"),
    )

    def __init__(self, options: Mapping[str, str], servers: Sequence[str]) -> None:
        values = _parsed("azure", self.OPTIONS, options)
        host = _HOST.match(servers[0])
        self._scope = values.get("scope") or f"https://{host['host'] if host else ''}/.default"
        self._client_id = values.get("client.id")
        self._credential: Any = None

    def __call__(self) -> Token:
        if self._credential is None:
            identity = _imported("azure.identity", "azure")
            self._credential = identity.DefaultAzureCredential(managed_identity_client_id=self._client_id)
        found = self._credential.get_token(self._scope)
        return Token(found.token, found.expires_on)


class Google:
    """Tokens for Google's brokers: the access token behind a header and claims, each in base64 for URLs."""

    OPTIONS = (
        Option(
            "principal",
            text(),
            "the account's address in the token",
            default_text="the service account of the default credentials",
        ),
    )
    _SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
    _HEADER = json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"})

    def __init__(self, options: Mapping[str, str], servers: Sequence[str]) -> None:  # noqa: ARG002
        self._principal = _parsed("google", self.OPTIONS, options).get("principal")
        self._credentials: Any = None

    def __call__(self) -> Token:
        if self._credentials is None:
            self._credentials, _ = _imported("google.auth", "google").default(scopes=self._SCOPES)
        credentials = self._credentials
        # This is called when a token is due for renewal, but credentials keep theirs until shortly before its end.
        credentials.refresh(_imported("google.auth.transport.requests", "google").Request())
        principal = self._principal or self._account(credentials)
        expires_at_s = credentials.expiry.replace(tzinfo=dt.timezone.utc).timestamp()
        claims = {"exp": expires_at_s, "iss": "Google", "iat": time.time(), "scope": "kafka", "sub": principal}
        parts = (self._HEADER, json.dumps(claims), credentials.token)
        return Token(".".join(map(_in_base64, parts)), expires_at_s, principal)

    @staticmethod
    def _account(credentials: Any) -> str:
        for name in ("service_account_email", "signer_email", "account"):
            account = getattr(credentials, name, None)
            if isinstance(account, str) and "@" in account:
                return account
        raise ConfigurationError(
            "the token provider 'google' has credentials without an account's address. Set 'sasl.token.principal' to"
            " the address of the account that they belong to.",
            option="sasl.token.principal",
        )


def _in_base64(part: str) -> str:
    return base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")


def _parsed(name: str, known: Sequence[Option], options: Mapping[str, str]) -> dict[str, Any]:
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


class _Dropped(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


@contextlib.contextmanager
def _silent(*loggers: str) -> Iterator[None]:
    """Keep out of the log what these loggers report at DEBUG: signatures, of which the token consists, and
    credentials."""
    dropped = _Dropped()
    for name in loggers:
        logging.getLogger(name).addFilter(dropped)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(dropped)
