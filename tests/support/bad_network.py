"""A TCP relay to one server that delays, loses and truncates requests and responses."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

LONGEST_DELAY_S = 0.3
_RESETS = struct.pack("ii", 1, 0)
"""A value of SO_LINGER with which close sends a reset."""


class BadNetwork:
    """A relay on a free port.

    Args:
        server: the address of the server; a path for a Unix socket.
        seed: the seed of the random faults.
        share: the share of received chunks that suffer a fault.

    Attributes:
        happened: fault → how often it has happened.
    """

    def __init__(self, server: tuple[str, int] | str, seed: int, share: float = 0.15) -> None:
        self._server, self._share = server, share
        self._random = random.Random(seed)  # noqa: S311
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.happened: Counter[str] = Counter()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
                server.connect(self._server)
                for source, target, faults in (
                    (client, server, ("delayed", "request lost")),
                    (server, client, ("delayed", "answer lost", "cut", "reset")),
                ):
                    threading.Thread(target=self._relay, args=(source, target, faults), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, faults: tuple[str, ...]) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                fault = self._random.choice(faults) if self._random.random() < self._share else ""
                self.happened[fault] += bool(fault)
                if fault == "delayed":
                    time.sleep(self._random.uniform(0, LONGEST_DELAY_S))
                elif fault == "reset":
                    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                elif fault == "cut":
                    target.sendall(data[: self._random.randrange(len(data))])
                if fault not in ("", "delayed"):
                    break
                target.sendall(data)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="bad-network", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
