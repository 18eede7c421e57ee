"""A REST catalog that requires an OAuth 2 login, a warehouse, and a prefix in each path, like Polaris and Unity."""

import json
import uuid
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_proxy import Answer, Request
from tests.support.vended_credentials import VendingCatalog

CLIENT, SECRET, SCOPE, WAREHOUSE = "etl", "hunter2-is-the-secret", "PRINCIPAL_ROLE:ALL", "sales"
LOGIN = {"credential": f"{CLIENT}:{SECRET}", "scope": SCOPE, "warehouse": WAREHOUSE}
"""A client's properties in addition to the URI."""

DELEGATION = "vended-credentials"


class GuardedCatalog(VendingCatalog):
    """Issues tokens for the client's secret, and refuses other requests without a valid token. Vends credentials for S3
    only to clients that ask for them.

    Attributes:
        tokens: all issued tokens.
        refused: the number of requests without a valid token.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tokens: list[str] = []
        self.refused = 0
        self._valid: set[str] = set()
        self._ends_at: int | None = None

    def end_tokens_at(self, number: int) -> None:
        """Expire all tokens after ``number`` further requests."""
        self._ends_at = len(self.requests) + number

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        if self._ends_at is not None and len(self.requests) > self._ends_at:
            self._ends_at = None
            self._valid.clear()
        url = urlsplit(request.target)
        if url.path == "/v1/oauth/tokens":
            return self._login(request)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if headers.get("authorization", "").removeprefix("Bearer ") not in self._valid:
            self.refused += 1
            return _error(401, "NotAuthorizedException")
        if url.path == "/v1/config":
            if parse_qs(url.query) != {"warehouse": [WAREHOUSE]}:
                return _error(404, "NotFoundException")
            return Answer(200, json.dumps({"defaults": {}, "overrides": {"prefix": WAREHOUSE}}).encode())
        assert url.path.startswith(f"/v1/{WAREHOUSE}/"), url.path
        of_server = replace(request, target=request.target.replace(f"/v1/{WAREHOUSE}/", "/v1/", 1))
        is_delegated = DELEGATION in headers.get("x-iceberg-access-delegation", "")
        return super()._forward(of_server, dropped) if is_delegated else _error(403, "ForbiddenException")

    def _login(self, request: Request) -> Answer:
        form = {name: value for name, [value] in parse_qs(request.body.decode()).items()}
        expected = {"grant_type": "client_credentials", "client_id": CLIENT, "client_secret": SECRET, "scope": SCOPE}
        if form != expected:
            return Answer(401, b'{"error": "invalid_client"}')
        self.tokens.append(f"token-{uuid.uuid4().hex}")
        self._valid.add(self.tokens[-1])
        given = {"access_token": self.tokens[-1], "token_type": "bearer", "expires_in": 3600}
        return Answer(200, json.dumps(given).encode())


def _error(status: int, kind: str) -> Answer:
    return Answer(status, json.dumps({"error": {"message": "no", "type": kind, "code": status}}).encode())
