"""What waits for a receiver, without a receiver."""

from __future__ import annotations

import threading
import time

import pytest

from twopc.observers import _outbox
from twopc.observers._outbox import Outbox

WAIT_S = 30.0


class Receiver:
    """Takes an item when it may, and raises ``error`` if there is one."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.reached = threading.Semaphore(0)
        self.tries = 0
        self.error: Exception | None = None
        self.taken: list[int] = []

    def take(self, item: int) -> None:
        self.tries += 1
        self.reached.release()
        assert self.may.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.taken.append(item)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def outbox(receiver: Receiver, capacity: int = 2, may_pass: bool = True) -> Outbox[int]:
    return Outbox(receiver.take, capacity, lambda _: may_pass)


def test_the_oldest_item_is_dropped_for_one_that_there_is_no_room_for(receiver: Receiver) -> None:
    box = outbox(receiver)
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)  # it is being sent, and needs no room
    for item in (1, 2, 3):
        box.put(item)
    assert box.dropped == 1
    receiver.may.set()
    box.close(WAIT_S)
    assert receiver.taken == [0, 2, 3]
    assert box.dropped == 1


def test_an_item_that_fails_while_there_is_no_room_is_dropped(receiver: Receiver) -> None:
    box = outbox(receiver)
    receiver.error = OSError("away")
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)
    box.put(1)
    box.put(2)
    receiver.may.set()
    assert receiver.reached.acquire(timeout=WAIT_S)  # the next one
    assert box.dropped == 1
    receiver.error = None
    box.close(WAIT_S)
    assert receiver.taken == [1, 2]
    assert box.dropped == 1


def test_what_is_left_at_the_close_is_tried_once_more(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_outbox, "RETRY_S", WAIT_S)
    box = outbox(receiver)
    receiver.error = OSError("http://writer:hunter2@receiver.example is away")
    receiver.may.set()
    box.put(0)
    deadline = time.monotonic() + WAIT_S
    while "http://receiver.example is away" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    box.close(WAIT_S)
    assert receiver.tries == 2
    assert box.dropped == 1


def test_an_item_whose_try_fails_during_the_close_is_tried_once_more(receiver: Receiver) -> None:
    box = outbox(receiver)
    receiver.error = OSError("away")
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)
    closing = threading.Thread(target=box.close, args=(WAIT_S,))
    closing.start()
    while not box._is_closed:
        time.sleep(0.01)
    receiver.may.set()
    closing.join()
    assert receiver.tries == 2
    assert box.dropped == 1


def test_an_item_after_the_close_is_dropped(receiver: Receiver) -> None:
    box = outbox(receiver)
    box.close(0)
    box.put(0)
    assert box.dropped == 1
