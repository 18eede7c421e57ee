"""Idle connections belong to a process and a server."""

import os

import pytest

from twopc.idle_connections import IdleConnections


class Connection:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connections() -> IdleConnections[str, Connection]:
    return IdleConnections(lambda _: Connection(), Connection.close)


def test_a_connection_is_lent_again(connections: IdleConnections[str, Connection]) -> None:
    with connections.lend("one") as first:
        pass
    with connections.lend("one") as again, connections.lend("one") as second, connections.lend("other") as other:
        assert first is again
        assert len({first, second, other}) == 3


def test_after_an_error_none_to_that_server_is_lent_again(connections: IdleConnections[str, Connection]) -> None:
    with connections.lend("one") as idle, connections.lend("one") as failing, connections.lend("other") as other:
        pass
    with pytest.raises(OSError, match="gone"), connections.lend("one"):
        raise OSError("gone")
    assert idle.is_closed
    assert failing.is_closed
    assert not other.is_closed
    assert not connections.to("one")


def test_a_forked_process_does_not_get_those_of_its_parent(
    connections: IdleConnections[str, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connections.lend("one") as of_the_parent:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with connections.lend("one") as of_the_child:
        assert of_the_child is not of_the_parent
    assert not of_the_parent.is_closed
