"""Hosts on one switch. The packets from one host to another can be made to vanish, in one direction or in both.

Each host knows the hardware address of every other one by a permanent entry. A cut from A to B changes A's entry for B
to an address that no host has: the switch forwards the packets to all, and none takes them. So neither side gets an
error, connections stay open, and iproute2 is enough.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tests.campaigns.jepsen.clocks import Clocks
from tests.support import networks
from tests.support.kills import Process, bound
from tests.support.pages import ROOT

BROKERS = ("broker1", "broker2", "broker3")
DRIVERS = ("driver1", "driver2")
WORKERS = ("worker1", "worker2")
READERS, POSTGRES = "readers", "postgres"
HOSTS = (*BROKERS, *DRIVERS, *WORKERS, READERS, POSTGRES)
"""``READERS`` is the campaign's own host."""

CLIENTS = (*DRIVERS, *WORKERS, READERS)

_INSIDE = "TWOPC_JEPSEN_NAMESPACE"
_UNSHARE = ("--user", "--map-current-user", "--keep-caps", "--net")

Link = tuple[str, str]


def enter_namespace(arguments: Sequence[str]) -> None:
    """Return if this process may create networks. Otherwise, replace it by the same program in a user namespace, where
    it may.

    Raises:
        SystemExit: networks can't be created; the message names what is missing.
    """
    if (reason := networks.why_not()) is None:
        return
    if _INSIDE in os.environ or not (shutil.which("ip") and shutil.which("tc")):
        raise SystemExit(f"error: {reason}")
    if not (unshare := shutil.which("unshare")):
        raise SystemExit(f"error: {reason}. Without root, it also needs the command 'unshare': install util-linux")
    trial = subprocess.run([unshare, *_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise SystemExit(f"error: {reason}; and no user namespace can be created: {trial.stderr.strip()}")
    program = [unshare, *_UNSHARE, sys.executable, "-m", "tests.campaigns", "jepsen", *arguments]
    os.execve(unshare, program, {**os.environ, _INSIDE: "1"})  # noqa: S606


def address(host: str) -> str:
    return f"10.78.0.{HOSTS.index(host) + 1}"


def between(some: Collection[str], others: Collection[str]) -> list[Link]:
    """Return the links between two groups of hosts, in both directions."""
    return [*one_way(some, others), *one_way(others, some)]


def one_way(senders: Collection[str], receivers: Collection[str]) -> list[Link]:
    return [(a, b) for a in senders for b in receivers if a != b]


class Network:
    """The hosts, and which of their links are cut or slow. Faults overlap, so cuts of a link are counted.

    Creating it puts the calling thread on the host ``READERS`` for good.

    Args:
        clocks: of the other hosts, or None if these have the machine's.
    """

    def __init__(self, clocks: Clocks | None) -> None:
        self.clocks = clocks
        self._cuts, self._slowed = Counter[Link](), Counter[str]()
        self._switch = networks.Host("")
        self._switch.run("ip link add switch type bridge")
        self._switch.run("ip link set switch up")
        self._hosts = dict(self._connected())
        for link in one_way(HOSTS, HOSTS):
            self._set(link, is_cut=False)
        self._hosts[READERS].enter()

    def _connected(self) -> Iterator[tuple[str, networks.Host]]:
        for name in HOSTS:
            host = networks.Host(address(name))
            cable = f"address {_hardware_address(name)} type veth peer name {name} netns {self._switch.path}"
            host.run(f"ip link add eth0 {cable}")
            self._switch.run(f"ip link set {name} master switch up")
            host.run(f"ip address add {host.address}/24 dev eth0")
            host.run("ip link set eth0 up")
            yield name, host

    def _set(self, link: Link, is_cut: bool) -> None:
        sender, receiver = link
        entry = f"{address(receiver)} lladdr {_hardware_address(receiver, exists=not is_cut)}"
        self._hosts[sender].run(f"ip neighbour replace {entry} dev eth0 nud permanent")

    def cut(self, links: Collection[Link]) -> None:
        for link in links:
            self._cuts[link] += 1
            if self._cuts[link] == 1:
                self._set(link, is_cut=True)

    def heal(self, links: Collection[Link]) -> None:
        for link in links:
            self._cuts[link] -= 1
            if not self._cuts[link]:
                self._set(link, is_cut=False)

    def slow(self, host: str, rate: str) -> None:
        """Send everything of a host at a rate, in tc's words, with a buffer of 3 s. What does not fit is lost."""
        self._slowed[host] += 1
        self._hosts[host].run(f"tc qdisc replace dev eth0 root tbf rate {rate} burst 8kb latency 3s")

    def restore(self, host: str) -> None:
        """Undo one ``slow``."""
        self._slowed[host] -= 1
        if not self._slowed[host]:
            self._hosts[host].run("tc qdisc delete dev eth0 root")

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Put the calling thread on a host."""
        with self._hosts[host].entered():
            yield

    def start(self, host: str, log: Path, *command: str) -> Process:
        """Start a process on a host. The system ends it with this thread, so only the main thread may call this."""
        clock = self.clocks.environment(host) if self.clocks and host != READERS else {}
        with self.on(host), log.open("ab") as output:
            return subprocess.Popen(
                bound(*command),
                cwd=ROOT,
                env={**os.environ, **clock},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_python(self, host: str, log: Path, *command: str) -> Process:
        """Start a Python module on a host, like ``start``."""
        return self.start(host, log, sys.executable, "-m", *command)


def _hardware_address(host: str, exists: bool = True) -> str:
    return f"02:78:{'00' if exists else 'ff'}:00:00:{HOSTS.index(host) + 1:02x}"
