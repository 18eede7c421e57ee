"""A REST catalog that gives out credentials of S3 with each table, and a store that refuses those that have ended."""

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
    """What a catalog gives out: an access key, and the token that goes with it."""

    key: str
    secret: str
    token: str
    ends_at_s: float

    def properties(self, reports_end: bool) -> dict[str, str]:
        """Return them as Iceberg's catalogs do, with or without their end."""
        end = {"s3.session-token-expires-at-ms": f"{self.ends_at_s * 1000:.0f}"} if reports_end else {}
        given = {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret, "s3.session-token": self.token}
        return given | end


@dataclass
class Vendor:
    """Gives out credentials, and knows which of them are valid.

    Attributes:
        life_s: how long they are valid.
        reports_end: whether they come with their end.
        by_prefix: whether they come as ``storage-credentials``, or in ``config``, as older catalogs have them.
        given: all that were given out.
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
        """End all credentials that were given out so far."""
        self._ended.update(each.key for each in self.given)

    def accepts(self, key: str, token: str | None) -> bool:
        is_known = any(each.key == key and each.token == token and each.ends_at_s > time.time() for each in self.given)
        return is_known and key not in self._ended

    @property
    def secrets(self) -> list[str]:
        return [text for each in self.given for text in (each.secret, each.token)]


class VendingCatalog(ProxyIntoHost):
    """A catalog that gives out credentials whenever it shows a table, and whose tables are on S3.

    The server itself keeps its metadata files on its disk: nobody reads them but the server.

    Args:
        warehouse: the server's folder, which clients know as the bucket.
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
    """Whether the answer shows a table as it was loaded or created. That to a commit has no credentials."""
    path = request.target.partition("?")[0]
    return (request.method == "GET" and "/tables/" in path) or (request.method == "POST" and path.endswith("/tables"))


class CheckedStore(HttpProxy):
    """A store that refuses a request whose credentials have ended.

    Attributes:
        refusal: the answer to it.
        refused: how many requests were refused.
    """

    def __init__(self, server_url: str, vendor: Vendor, refusal: Answer | None = None) -> None:
        super().__init__(server_url)
        self._vendor = vendor
        self._ends_at: int | None = None
        self.refusal = refusal or s3_error(400, "ExpiredToken", "The provided token has expired.")
        self.refused = 0

    def end_all_at(self, number: int) -> None:
        """End all credentials when ``number`` further requests have passed."""
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
