"""A small issuer of tokens over HTTPS: the endpoint of client credentials (RFC 6749, 4.4), and the keys for brokers."""

from __future__ import annotations

import base64
import json
import math
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from twopc_kafka import Token

if TYPE_CHECKING:
    from pathlib import Path

    import trustme
    from typing_extensions import Self

AUDIENCE, ISSUER, KEY_ID = "kafka", "https://issuer.example", "key-1"


class Provider:
    """A token provider of a user's own, named by its import path."""

    def __init__(self, options: Mapping[str, str], servers: Sequence[str]) -> None:
        assert [server.rpartition(":")[2].isdecimal() for server in servers]
        self._options = options

    def __call__(self) -> Token:
        context = ssl.create_default_context(cafile=self._options["authority"])
        credentials = base64.b64encode(f"{self._options['client']}:{self._options['secret']}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310
            self._options["url"], b"grant_type=client_credentials", {"Authorization": f"Basic {credentials}"}
        )
        with urllib.request.urlopen(request, context=context) as response:  # noqa: S310
            answer = json.load(response)
        return Token(answer["access_token"], time.time() + answer["expires_in"], self._options["client"])


@cache
def _key() -> RSAKey:
    """Make the key of every issuer in this process."""
    key: RSAKey = RSAKey.generate_key(2048, {"kid": KEY_ID, "alg": "RS256", "use": "sig"})
    return key


class Issuer:
    """Serves while its context lasts.

    Attributes:
        clients: the secret of each client.
        life_s: of a token.
        forms: what it was asked, each time.
        tokens: what it has given.
        subjects: whom the next tokens are for, in place of the client.
        answer: status and body for whatever is asked, in place of a token.
        headers: of every answer.
    """

    def __init__(self, authority: trustme.CA, clients: dict[str, str], life_s: int = 300) -> None:
        self.clients, self.life_s = clients, life_s
        self.forms: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        self.headers = {"Content-Type": "application/json"}  # librdkafka reads no other
        self._key = _key()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.subjects: Iterator[str] | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_port}/token"

    def write_keys(self, file: Path) -> None:
        """What a broker knows its tokens by."""
        file.write_text(json.dumps(KeySet([self._key]).as_dict(private=False)))

    def reply(self, authorization: str, form: dict[str, str]) -> tuple[int, bytes]:
        self.forms.append(form)
        if self.answer is not None:
            return self.answer
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.clients.get(client) != secret:
            return 401, b'{"error": "invalid_client"}'
        if form["grant_type"] != "client_credentials":
            return 400, b'{"error": "unsupported_grant_type"}'
        self.tokens.append(self._token(client))
        return 200, json.dumps({"access_token": self.tokens[-1], "expires_in": self.life_s}).encode()

    def _token(self, client: str) -> str:
        now = math.ceil(time.time())  # a token lives for no less than is told
        subject = next(self.subjects) if self.subjects else client
        claims = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + self.life_s}
        return jwt.encode({"alg": "RS256", "kid": KEY_ID}, claims, self._key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                status, answer = issuer.reply(self.headers.get("Authorization", ""), form)
                self.send_response(status)
                for name, value in {**issuer.headers, "Content-Length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
