"""What waits for a receiver, without a receiver."""

import os
import signal
import threading
import time

import pytest

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


def outbox(receiver: Receiver, capacity: int = 2) -> Outbox[int]:
    return Outbox(receiver.take, capacity)


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


def test_an_item_that_fails_is_dropped_and_the_next_one_is_sent(receiver: Receiver) -> None:
    box = outbox(receiver)
    receiver.error = OSError("away")
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)
    box.put(1)
    receiver.may.set()
    assert receiver.reached.acquire(timeout=WAIT_S)  # the next one
    receiver.error = None
    box.put(2)
    box.close(WAIT_S)
    assert receiver.taken[-1] == 2
    assert box.dropped + len(receiver.taken) == 3


def test_what_waits_at_the_close_is_sent(receiver: Receiver) -> None:
    box = outbox(receiver)
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)
    box.put(1)
    closing = threading.Thread(target=box.close, args=(WAIT_S,))
    closing.start()
    while not box._is_closed:
        time.sleep(0.01)
    receiver.may.set()
    closing.join()
    assert (receiver.taken, box.dropped) == ([0, 1], 0)


def test_an_item_after_the_close_is_dropped(receiver: Receiver) -> None:
    box = outbox(receiver)
    box.close(0)
    box.put(0)
    assert box.dropped == 1


@pytest.mark.parametrize(
    ("told", "logged"),
    [
        ("401 for url: http://w:hunter2@r.example/api?code=hunter2", "401 for url: http://r.example/api?"),
        ("401 for url: http://w:p@hunter2@r.example/api", "401 for url: http://r.example/api"),
        ("with url: /api?code=hunter2 (Caused by it)", "with url: /api? (Caused by it)"),
    ],
)
def test_a_failure_is_logged_without_the_secrets_of_a_url(
    told: str, logged: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    box = outbox(receiver)
    receiver.error = OSError(told)
    receiver.may.set()
    box.put(0)
    box.close(WAIT_S)
    assert logged in caplog.text
    assert "hunter2" not in caplog.text


def test_the_sizes_of_the_items_that_wait_are_bounded(receiver: Receiver) -> None:
    box = outbox(receiver, capacity=100)
    box.put(0, 90)
    assert receiver.reached.acquire(timeout=WAIT_S)
    box.put(1, 60)
    box.put(2, 30)
    box.put(3, 30)
    assert box.dropped == 1
    box.put(4, 300)  # waits alone, rather than never
    assert box.dropped == 3
    receiver.may.set()
    box.close(WAIT_S)
    assert receiver.taken == [0, 4]


def test_a_forked_process_sends_its_own_items_and_not_those_of_its_parent(receiver: Receiver) -> None:
    box = outbox(receiver, capacity=10)
    box.put(0)
    assert receiver.reached.acquire(timeout=WAIT_S)
    box.put(1)
    box._changed.acquire()  # as another thread may have at the fork
    if (child := os.fork()) == 0:  # what fails there is its exit code, and pytest must not go on in it
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(WAIT_S))  # it may wait for the lock forever
            receiver.may.set()
            box.put(2)
            box.close(WAIT_S)
            os._exit(0 if receiver.taken == [2] else 1)
        finally:
            os._exit(2)
    box._changed.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    receiver.may.set()
    box.close(WAIT_S)
    assert receiver.taken == [0, 1]
