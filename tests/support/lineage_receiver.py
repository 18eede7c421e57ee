"""A receiver of OpenLineage events over HTTP, on a free local port."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.server_process import Startable


class LineageReceiver(Startable):
    """Keeps the events that it accepts.

    Attributes:
        status: the status of its responses; it keeps events if that is 200.
        delay_s: how long it waits before it responds.
        asked: the number of requests so far.
        events: the bodies of accepted requests.
        tokens: the header ``Authorization`` of each request.
    """

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.delay_s = 0.0
        self.asked = 0
        self.events: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.asked += 1
                receiver.tokens.append(self.headers["Authorization"])
                time.sleep(receiver.delay_s)
                if receiver.status == 200:
                    receiver.events.append(body)
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def of_type(self, event_type: str) -> list[dict[str, Any]]:
        """Return the events of a type, such as ``COMPLETE``."""
        return [event for event in self.events if event["eventType"] == event_type]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
