"""The page of ``twopc report --serve``: over HTTP, for browsers on the same machine, from a log that is read again."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from twopc.cli.output import kind_of
from twopc.cli.page import Contents, Live, render
from twopc.errors import ConfigurationError

ADDRESS = "127.0.0.1"

NAMES = ("127.0.0.1", "localhost")
"""The hosts that a browser may ask for. A page of another site may have its name resolved to this machine."""

REFRESH_S = 5
"""The time between two loads of the page: an operator can look, and no log of a remote store is read all the time."""

READ_EVERY_S = 1.0
"""The log is read at most as often, however many browsers look, and reading takes at most a third of the time."""


class LivePage:
    """The newest page, for any number of threads. What can't be read is shown on the page, since it may be readable
    soon."""

    def __init__(
        self,
        read: Callable[[], Contents],
        seen: Callable[[Exception | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read``: reads the log. ``seen``: is called after each read, with what was wrong."""
        self._read = read
        self._seen = seen
        self._clock = clock
        self._lock = threading.Lock()
        self._contents: Contents | None = None
        self._error: Exception | None = None
        self._page: tuple[Live, str] | None = None
        self._next_read_s = -math.inf

    def show(self, view: str, is_paused: bool) -> tuple[bool, str]:
        """Return whether the page is up to date, and the page. ``view``: see ``Live``."""
        with self._lock:
            if (started_s := self._clock()) >= self._next_read_s:
                self._renew()
                ended_s = self._clock()
                self._next_read_s = ended_s + max(READ_EVERY_S, 2 * (ended_s - started_s))
            live = Live(None if is_paused else REFRESH_S, view, describe_error(self._error) if self._error else "")
            if self._page is None or self._page[0] != live:
                self._page = (live, render(self._contents, live))
            return self._error is None, self._page[1]

    def _renew(self) -> None:
        self._page = None
        try:
            self._contents, self._error = self._read(), None
        except Exception as error:  # noqa: BLE001  # shown to the operator, and the next request reads again
            self._error = error
        self._seen(self._error)


def describe_error(error: Exception) -> str:
    """Return an error as the page and the terminal have it."""
    return f"{kind_of(error)}: {error}"


class _Server(ThreadingHTTPServer):
    allow_reuse_port = False  # some releases of Python let a second server share the port

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a browser that loads the page again may drop the first load
            super().handle_error(request, client_address)


def serve(page: LivePage, port: int, started: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C. ``started`` is given its address. Port 0 is any free one.

    Raises:
        ConfigurationError: the port can't be used.
    """
    try:
        server = _Server((ADDRESS, port), _handler(page))
    except OSError as error:
        raise ConfigurationError(
            f"port {port} of {ADDRESS} can't be used: {error.strerror}. Name another with --port; 0 is any free one."
        ) from error
    with server:
        started(f"http://{ADDRESS}:{server.server_port}/")
        server.serve_forever()


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "twopc", ""

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if self.headers.get("Host", "").partition(":")[0].lower() not in NAMES:
                self._answer(421, "text/plain", f"This server answers to {' and '.join(NAMES)} only.\n")
            elif path != "/":
                self._answer(404, "text/plain", "The only page is /.\n")
            else:
                asked = dict(parse_qsl(query, keep_blank_values=True))
                is_up_to_date, text = page.show(asked.get("show", ""), "pause" in asked)
                self._answer(200 if is_up_to_date else 503, "text/html", text)

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode("utf-8", errors="replace")  # JSON may hold half a surrogate pair
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: the command reports what it has read."""

    return Handler
