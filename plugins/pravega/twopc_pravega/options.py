"""The options of the Pravega sink: their names, checks and defaults are defined here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Kind, Option, parse, place, refuse_unknown, seconds, text

OWNER = "the pravega sink"

_URI = re.compile(r"(tcp|tls|pravega|pravegas)://([^\s/@:,]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})/?")
_NAME = r"[A-Za-z0-9.-]+"
_STREAM = re.compile(rf"({_NAME})/({_NAME})")


def _uri(given: Any) -> tuple[str, bool]:
    found = _URI.fullmatch(text().read(given))
    if found is None or not 0 < int(found[3]) < 65_536:
        raise ValueError
    return f"{found[2]}:{found[3]}", found[1] in ("tls", "pravegas")


def _stream(given: Any) -> Stream:
    found = _STREAM.fullmatch(text().read(given))
    if found is None:
        raise ValueError
    return Stream(found[1], found[2])


OPTIONS = (
    Option(
        "controller",
        Kind("text", "a controller's address, such as tcp://controller.example:9090, or tls://… for TLS", _uri),
        "the controller's address, as Pravega's Java client takes it: `tcp://host:port`, or `tls://host:port` for TLS"
        " to the controller and to the segment stores. If there are several controllers, give a DNS name that stands"
        " for all of them",
        needed=True,
    ),
    Option(
        "stream",
        Kind("text", "scope/stream, such as sales/orders", _stream),
        "`scope/stream`. The sink does not create the stream",
        needed=True,
    ),
    Option(
        "lease_s",
        seconds(least=10, most=43_200),
        "how long Pravega keeps a transaction from which it hears nothing. It must be longer than the first phase of a"
        " batch takes, and the time that the driver may be down after a decision. The controller's limit is"
        " `controller.transaction.lease.count.max`, 600 s by default",
        default=600.0,
    ),
    Option("username", text(), "the user's name, for basic authentication"),
    Option("password", text(), "the user's password"),
    Option(
        "ca_file",
        place("path", "/etc/ssl/pravega.pem"),
        "a file of the certificates of authorities that TLS trusts. It must exist on the driver and on the executors",
        default_text="the system's",
    ),
)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream in its scope."""

    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


@dataclass(frozen=True, slots=True)
class Server:
    """A Pravega cluster and how to reach it. The repr hides the password.

    Attributes:
        target: the controller's host and port.
        is_tls: whether all connections use TLS.
        username: for basic authentication; empty for none.
        ca_file: the certificates that TLS trusts; empty for the system's.
    """

    target: str
    is_tls: bool = False
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class PravegaOptions:
    """The checked options."""

    server: Server
    stream: Stream
    lease_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> PravegaOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message shows no value.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        for one, other in (("username", "password"), ("password", "username")):
            if one in values and other not in values:
                raise ConfigurationError(
                    f"{OWNER} has the option {one!r} without {other!r}: give both, or neither.", option=other
                )
        target, is_tls = values["controller"]
        if "ca_file" in values and not is_tls:
            raise ConfigurationError(
                f"{OWNER} uses TLS, which 'ca_file' is for, only if 'controller' starts with tls://.", option="ca_file"
            )
        credentials = values.get("username", ""), values.get("password", ""), values.get("ca_file", "")
        return cls(Server(target, is_tls, *credentials), values["stream"], round(values["lease_s"] * 1000))

    def __str__(self) -> str:
        """Return the stream and its cluster, for messages."""
        return f"stream {self.stream} at {self.server.target}"
