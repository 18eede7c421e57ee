"""A network other than loopback: two hosts, as Linux network namespaces, joined by a cable with an Ethernet's MTU and
bandwidth.

On loopback, a socket accepts megabytes at once and delivers them immediately, which hides defects in timing and in
partial writes.

A thread that enters a host runs on it, with all threads and processes that it starts there. Needs root and iproute2.
The namespaces have no names and vanish with the last process that uses them.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

_CLONE_NEWNET = 0x40000000
_NAMESPACE = "/proc/thread-self/ns/net"
_SHAPE = "burst 256kb latency 50ms"  # a switch's buffers; packets beyond that are dropped

_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def why_not() -> str | None:
    """Return why such networks are not available here and what is missing; None if they are available."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return "network namespaces need the commands 'ip' and 'tc': install iproute2"
    try:
        Network("1gbit").close()
    except PermissionError as error:
        return f"network namespaces need root, or the capabilities SYS_ADMIN and NET_ADMIN: {error}"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces, veth or tbf are not available: {error}"
    return None


class Host:
    """A network namespace with a loopback device of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        with ThreadPoolExecutor(1) as pool:  # unshare moves the calling thread permanently
            self._namespace: int = pool.submit(_new_namespace).result()
        self.run("ip link set lo up")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._namespace}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread on this host while the context is open."""
        before = os.open(_NAMESPACE, os.O_RDONLY)
        _check(_libc.setns(self._namespace, _CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(before, _CLONE_NEWNET))
            os.close(before)

    def enter(self) -> None:
        """Put the calling thread on this host permanently."""
        _check(_libc.setns(self._namespace, _CLONE_NEWNET))

    def run(self, command: str) -> None:
        with self.entered():
            subprocess.run(command.split(), check=True, capture_output=True)

    def close(self) -> None:
        os.close(self._namespace)


class Network:
    """Two hosts and the cable between them."""

    def __init__(self, rate: str) -> None:
        self.here, self.there = Host("10.77.0.1"), Host("10.77.0.2")
        self.here.run(f"ip link add eth0 mtu 1500 type veth peer name eth0 mtu 1500 netns {self.there.path}")
        for host in (self.here, self.there):
            host.run(f"ip address add {host.address}/24 dev eth0")
            host.run("ip link set eth0 up")
        self.shape(rate)

    def shape(self, rate: str) -> None:
        """Set the bandwidth for both directions, in tc's syntax."""
        for host in (self.here, self.there):
            host.run(f"tc qdisc replace dev eth0 root tbf rate {rate} {_SHAPE}")

    def close(self) -> None:
        """Release both hosts. Their namespaces end with the processes on them."""
        self.here.close()
        self.there.close()


def _new_namespace() -> int:
    _check(_libc.unshare(_CLONE_NEWNET))
    return os.open(_NAMESPACE, os.O_RDONLY)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
