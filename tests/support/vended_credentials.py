"""A REST catalog that vends S3 credentials with each table, and a store that refuses expired ones."""

import json
import re
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.http_proxy import Answer, HttpProxy, Request, s3_error
from tests.support.networks import Host
from tests.support.rest_catalog import ProxyIntoHost

BUCKET = "lake"

_SIGNED_BY = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True)
class Credentials:
    """Vended credentials: an access key and its session token."""

    key: str
    secret: str
    token: str
    ends_at_s: float

    def properties(self, reports_end: bool) -> dict[str, str]:
        """Return them as Iceberg properties, with or without their expiration."""
        end = {"s3.session-token-expires-at-ms": f"{self.ends_at_s * 1000:.0f}"} if reports_end else {}
        given = {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret, "s3.session-token": self.token}
        return given | end


@dataclass
class Vendor:
    """Issues credentials, and knows which of them are valid.

    Attributes:
        life_s: the lifetime of credentials.
        reports_end: whether they include their expiration.
        by_prefix: whether they are sent as ``storage-credentials``, or in ``config`` as by older catalogs.
        given: all issued credentials.
    """

    life_s: float = 3600.0
    reports_end: bool = True
    by_prefix: bool = False
    given: list[Credentials] = field(default_factory=list)
    _ended: set[str] = field(default_factory=set)

    def give(self) -> Credentials:
        number = uuid.uuid4().hex
        found = Credentials(f"AKIA{number}", f"secret-{number}", f"token-{number}", time.time() + self.life_s)
        self.given.append(found)
        return found

    def end_all(self) -> None:
        """Expire all credentials issued so far."""
        self._ended.update(each.key for each in self.given)

    def accepts(self, key: str, token: str | None) -> bool:
        is_known = any(each.key == key and each.token == token and each.ends_at_s > time.time() for each in self.given)
        return is_known and key not in self._ended

    @property
    def secrets(self) -> list[str]:
        return [text for each in self.given for text in (each.secret, each.token)]


class VendingCatalog(ProxyIntoHost):
    """A catalog with tables on S3 that vends credentials whenever it returns a table.

    The server keeps metadata files on its own disk, since only the server reads them.

    Args:
        warehouse: the server's folder, which clients see as the bucket.
        storage: further properties for access to files.
    """

    def __init__(self, host: Host, warehouse: str, vendor: Vendor, storage: dict[str, str]) -> None:
        super().__init__(host)
        self._vendor = vendor
        self._places = warehouse.encode(), f"s3://{BUCKET}".encode()
        self._storage = storage

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        on_disk, on_s3 = self._places
        for_server = replace(request, body=request.body.replace(on_s3, on_disk))
        answer = super()._forward(for_server, dropped | {"content-length", "accept-encoding"})
        body = answer.body.replace(on_disk, on_s3).replace(on_disk.replace(b"file:///", b"file:/"), on_s3)
        return replace(answer, body=self._with_credentials(body) if answer.status == 200 and _shows(request) else body)

    def _with_credentials(self, body: bytes) -> bytes:
        table: dict[str, Any] = json.loads(body)
        given = self._vendor.give().properties(self._vendor.reports_end)
        config = {**table.get("config", {}), **self._storage}
        if self._vendor.by_prefix:
            table["storage-credentials"] = [{"prefix": f"s3://{BUCKET}/", "config": given}]
        else:
            config |= given
        return json.dumps({**table, "config": config}).encode()


def _shows(request: Request) -> bool:
    """Return whether the response has a loaded or created table. The response to a commit has no credentials."""
    path = request.target.partition("?")[0]
    return (request.method == "GET" and "/tables/" in path) or (request.method == "POST" and path.endswith("/tables"))


class CheckedStore(HttpProxy):
    """A store that refuses requests with expired credentials.

    Attributes:
        refusal: the response to such a request.
        refused: the number of refused requests.
    """

    def __init__(self, server_url: str, vendor: Vendor, refusal: Answer | None = None) -> None:
        super().__init__(server_url)
        self._vendor = vendor
        self._ends_at: int | None = None
        self.refusal = refusal or s3_error(400, "ExpiredToken", "The provided token has expired.")
        self.refused = 0

    def end_all_at(self, number: int) -> None:
        """Expire all credentials after ``number`` further requests."""
        self._ends_at = len(self.requests) + number

    @property
    def has_ended_all(self) -> bool:
        return self._ends_at is None

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        if self._ends_at is not None and len(self.requests) > self._ends_at:
            self._vendor.end_all()
            self._ends_at = None
        headers = {name.lower(): value for name, value in request.headers.items()}
        signed_by = _SIGNED_BY.search(headers.get("authorization", ""))
        if signed_by and self._vendor.accepts(signed_by[1], headers.get("x-amz-security-token")):
            return super()._forward(request, dropped)
        self.refused += 1
        return replace(self.refusal, body=b"") if request.method == "HEAD" else self.refusal
