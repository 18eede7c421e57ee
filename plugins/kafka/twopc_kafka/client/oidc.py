"""Tokens from an issuer's endpoint, for kafka-python's connections. librdkafka fetches its own.

Both clients use librdkafka's options and request tokens from the same endpoint, with the client credentials grant
(RFC 6749, 4.4).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twopc.errors import ConfigurationError, OperatorRequired, Retriable

PREFIX = "sasl.oauthbearer."
_METHOD = f"{PREFIX}method"
_ENDPOINT = f"{PREFIX}token.endpoint.url"
_CLIENT_ID = f"{PREFIX}client.id"
_CLIENT_SECRET = f"{PREFIX}client.secret"
_SCOPE = f"{PREFIX}scope"
_EXTENSIONS = f"{PREFIX}extensions"
_AUTHORITY = "https.ca.location"

_NEEDED = (_METHOD, _ENDPOINT, _CLIENT_ID, _CLIENT_SECRET)
OPTIONS = (*_NEEDED, _SCOPE, _EXTENSIONS, _AUTHORITY)

TIMEOUT_S = 10.0
"""How long the token endpoint may take to respond. Callers that need a token repeat the call."""

_LONGEST_ANSWER = 1024 * 1024
_PASSING = (408, 429)
_URL = re.compile(r"https?://[^\s/?#@]+(?:[/?]\S*)?")  # no user: urllib's errors would show the password
_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[ -~]*")  # RFC 7628, 3.1

_ADVICE = {
    "invalid_client": f"Correct {_CLIENT_ID!r} and {_CLIENT_SECRET!r}",
    "invalid_scope": f"Correct {_SCOPE!r}",
    "unauthorized_client": "Allow this client the grant type client_credentials at the issuer",
    "unsupported_grant_type": f"Allow the grant type client_credentials at the issuer, or correct {_ENDPOINT!r}",
}
"""Error code of RFC 6749, 5.2 → advice. No other part of a response is shown, because it could echo the request."""


def check(properties: Mapping[str, Any], instead: str) -> None:
    """Refuse options with which no token can be fetched. ``instead`` is the option for other token providers.

    Raises:
        ConfigurationError: an option is wrong or missing. The error names the option, never its value.
    """
    for name in _NEEDED:
        if not properties.get(name):
            raise ConfigurationError(
                f"'sasl.mechanism' = 'OAUTHBEARER' needs {', '.join(map(repr, _NEEDED))}; or {instead!r}", option=name
            )
    if properties[_METHOD] != "oidc":
        raise ConfigurationError(
            f"{_METHOD!r} must be 'oidc'; for tokens from elsewhere, set {instead!r}", option=_METHOD
        )
    if not _URL.fullmatch(str(properties[_ENDPOINT])):
        raise ConfigurationError(f"{_ENDPOINT!r} must be a URL such as https://issuer.example/token", option=_ENDPOINT)
    if not all(map(_EXTENSION.fullmatch, _parts(properties))):
        raise ConfigurationError(f"{_EXTENSIONS!r} must have the form 'tenant=sales,region=emea'", option=_EXTENSIONS)


class Endpoint:
    """An issuer's endpoint, with the client's credentials."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    @property
    def extensions(self) -> dict[str, str]:
        return dict(part.split("=", 1) for part in _parts(self._properties))

    def fetch(self) -> tuple[str, int]:
        """Return a token, and its lifetime in seconds.

        Raises:
            Retriable: the endpoint returned no token.
            OperatorRequired: the endpoint refuses this client.
        """
        try:
            with self._opener().open(self._request(), timeout=TIMEOUT_S) as response:
                answer = json.loads(response.read(_LONGEST_ANSWER))
            return _text(answer["access_token"]), int(answer.get("expires_in", 0))  # 0: fetch a token for every login
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(f"{type(error).__name__}: {error}") from None
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
            raise self._unanswered(f"its response has no token ({type(error).__name__})") from None

    def _request(self) -> urllib.request.Request:
        credentials = f"{self._properties[_CLIENT_ID]}:{self._properties[_CLIENT_SECRET]}".encode()
        form = {"grant_type": "client_credentials"}
        if _SCOPE in self._properties:
            form["scope"] = self._properties[_SCOPE]
        return urllib.request.Request(  # noqa: S310  # check_tokens has checked the scheme
            self._properties[_ENDPOINT],
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {base64.b64encode(credentials).decode()}", "Accept": "application/json"},
        )

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context()
        if authority := self._properties.get(_AUTHORITY):
            is_folder = Path(authority).is_dir()
            context.load_verify_locations(**{"capath" if is_folder else "cafile": authority})
        return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))

    def _refused(self, error: urllib.error.HTTPError) -> Retriable | OperatorRequired:
        if error.code >= http.client.INTERNAL_SERVER_ERROR or error.code in _PASSING:
            return self._unanswered(f"it answered {error.code}")
        code = _known_code(error)
        said = f"{error.code}, {code}" if code else f"{error.code}"
        advice = _ADVICE[code] if code else f"Correct {_ENDPOINT!r}, {_CLIENT_ID!r} and {_CLIENT_SECRET!r}"
        return OperatorRequired(
            f"the token endpoint at {self._endpoint} refuses this client ({said}). {advice}, and start again: recovery"
            " continues where it stopped."
        )

    def _unanswered(self, reason: str) -> Retriable:
        return Retriable(
            f"the token endpoint at {self._endpoint} returned no token: {reason}. Is {_ENDPOINT!r} right,"
            f" is the endpoint up, and does {_AUTHORITY!r} (or the system) have its certificate authority?"
        )

    @property
    def _endpoint(self) -> str:
        """The endpoint's address, without the query, which may contain a secret."""
        return self._properties[_ENDPOINT].partition("?")[0]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Ignores redirects, so that the client's secret goes only to the configured endpoint."""

    def redirect_request(self, *_: object) -> None:
        return None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("no text")
    return value


def _known_code(error: urllib.error.HTTPError) -> str | None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        code: str = json.loads(error.read(_LONGEST_ANSWER))["error"]
        return code if code in _ADVICE else None
    return None


def _parts(properties: Mapping[str, Any]) -> list[str]:
    return [part.strip() for part in str(properties.get(_EXTENSIONS, "")).split(",") if part.strip()]
