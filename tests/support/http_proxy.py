"""An HTTP proxy in front of one server that can lose requests and replies, or reply in the server's place."""

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.message import Message
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit

from tests.support.server_process import Startable

TIMEOUT_S = 60.0
PER_HOP = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``target`` is the path with its query, as the client sent it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Lost(Enum):
    """A connection that ends without a reply, before or after the server receives the request."""

    REQUEST = "before"
    REPLY = "after"


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that the client gets instead of the server's."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """A request that reaches the server without some of its headers (in lower case), or with another body."""

    without_headers: frozenset[str]
    body: Callable[[bytes], bytes] = bytes


FRAMED = Changed(
    frozenset({"content-length", "content-md5", "x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm"}),
    lambda body: b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
)
"""Makes the server behave like those that store the framing of checksums as content, such as SeaweedFS before 3.85."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A request that a gateway sends to the server twice. The client gets the second reply."""


Disturbance: TypeAlias = Lost | Answer | Changed | Repeated


def s3_error(status: int, code: str, message: str = "as the test asked") -> Answer:
    """Return an error reply of an S3 server, with only a code and a message."""
    xml = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Answer(status, xml.encode())


def azure_error(status: int, code: str, message: str = "as the test asked") -> Answer:
    """Return an error reply of Azure Storage. The code is also in a header, since a reply to HEAD has no body."""
    xml = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Answer(status, xml.encode(), (("x-ms-error-code", code), ("Content-Type", "application/xml")))


def gcs_error(status: int, message: str = "as the test asked") -> Answer:
    """Return an error reply of Google Cloud Storage's JSON API."""
    body = json.dumps({"error": {"code": status, "message": message, "errors": [{"message": message}]}})
    return Answer(status, body.encode(), (("Content-Type", "application/json"),))


def hdfs_error(status: int, exception: str, message: str = "as the test asked") -> Answer:
    """Return a reply of WebHDFS with a Java exception."""
    return Answer(status, json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode())


@dataclass(frozen=True, slots=True)
class _Plan:
    matches: Callable[[Request], bool]
    disturbance: Disturbance


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the delayed acknowledgement of its headers
    pass_on: Callable[[Request], Answer | None]

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            super().handle()

    def _handle(self) -> None:
        body = self._chunks() if _is_chunked(self.headers) else self._read(self.headers.get("Content-Length", "0"))
        answer = type(self).pass_on(Request(self.command, self.path, dict(self.headers.items()), body))
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.command == "HEAD":  # the length is the object's, and there is no body
            self.end_headers()
            return
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _read(self, length: str, base: int = 10) -> bytes:
        data = self.rfile.read(int(length, base))
        if len(data) < int(length, base):
            raise ConnectionError("the client was gone before the end of its request")
        return data

    def _chunks(self) -> bytes:
        """Read a chunked body without trailers."""
        found = []
        while chunk := self._read(self.rfile.readline().decode(), base=16):
            found.append(chunk)
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815  # names that http.server requires

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ``requests`` has them."""


class HttpProxy(Startable):
    """Forwards requests from a free port, one at a time.

    One at a time, because a store must make conditional writes atomic, while moto's threads check first and write
    afterwards. The requests of several clients still arrive in any order.
    """

    def __init__(self, server_url: str) -> None:
        url = urlsplit(server_url)
        assert url.hostname
        assert url.port
        self._server = (url.hostname, url.port)
        self._one_at_a_time = threading.Lock()
        self._next: list[_Plan] = []
        self._always: list[_Plan] = []
        self.requests: list[Request] = []
        """All requests in order, including lost ones."""
        handler = type("Handler", (_Handler,), {"pass_on": self._pass_on})
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._listener.daemon_threads = True
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.01,), name="http-proxy", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    def disturb_next(self, method: str, disturbance: Disturbance, target: Callable[[str], bool] | str = "") -> None:
        """Disturb the next request of ``method`` whose target matches or contains ``target``. Several disturbances
        queue up, one per request."""
        self._next.append(_Plan(_matching(method, target), disturbance))

    def disturb_all(self, method: str, disturbance: Disturbance, target: Callable[[str], bool] | str = "") -> None:
        """Disturb every request that has no other disturbance, until ``heal``."""
        self._always.append(_Plan(_matching(method, target), disturbance))

    def heal(self) -> None:
        """Forget all disturbances."""
        with self._one_at_a_time:
            self._next.clear()
            self._always.clear()

    @property
    def is_done(self) -> bool:
        """Whether every disturbance of ``disturb_next`` has happened."""
        return not self._next

    def sent(self, method: str, target: str = "") -> list[Request]:
        """Return the requests of ``method`` whose target contains ``target``."""
        return [request for request in self.requests if _matching(method, target)(request)]

    def _pass_on(self, request: Request) -> Answer | None:
        with self._one_at_a_time:
            self.requests.append(request)
            disturbance = self._disturbance(request)
            if isinstance(disturbance, Answer):
                return disturbance
            if disturbance is Lost.REQUEST:
                return None
            dropped: frozenset[str] = frozenset()
            if isinstance(disturbance, Changed):
                dropped, request = disturbance.without_headers, replace(request, body=disturbance.body(request.body))
            try:
                if isinstance(disturbance, Repeated):
                    self._forward(request, PER_HOP)
                answer = self._forward(request, PER_HOP | dropped)
            except (OSError, http.client.HTTPException):  # the server is down, or was killed during its reply
                return None
            return None if disturbance is Lost.REPLY else answer

    def _disturbance(self, request: Request) -> Disturbance | None:
        for plan in self._next:
            if plan.matches(request):
                self._next.remove(plan)
                return plan.disturbance
        return next((plan.disturbance for plan in self._always if plan.matches(request)), None)

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        connection = http.client.HTTPConnection(*self._server, timeout=TIMEOUT_S)
        try:
            is_chunked = _is_chunked(request.headers)
            headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
            if is_chunked:
                headers["Transfer-Encoding"] = "chunked"  # the header may be signed
            connection.request(request.method, request.target, request.body, headers, encode_chunked=is_chunked)
            reply = connection.getresponse()
            body = reply.read()
            of_body = set() if request.method == "HEAD" else {"content-length"}
            kept = tuple((k, v) for k, v in reply.getheaders() if k.lower() not in PER_HOP | of_body)
            return Answer(reply.status, body, kept)
        finally:
            connection.close()

    def forwarded(self, request: Request) -> Answer:
        """Send a request, such as a recorded one, to the server."""
        return self._forward(request, frozenset({"content-length", "connection", "host"}))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


def _is_chunked(headers: Mapping[str, str] | Message) -> bool:
    return headers.get("Transfer-Encoding", "").lower() == "chunked"


def _matching(method: str, target: Callable[[str], bool] | str) -> Callable[[Request], bool]:
    def matches(request: Request) -> bool:
        fits = target in request.target if isinstance(target, str) else target(request.target)
        return request.method == method and fits

    return matches
