"""Calls on threads hold back neither an interrupt nor the end of the interpreter, and are waited for."""

import contextlib
import gc
import signal
import sys
import threading
import traceback
import weakref

import pytest

from twopc.threads import Worker, call_at_once, join, on_threads

PATIENCE_S = 30.0


@pytest.mark.usefixtures("interruptible")
def test_a_thread_is_waited_for_again_after_an_interrupt_of_the_wait() -> None:
    released, main = threading.Event(), threading.main_thread().ident or 0

    def interrupt() -> None:
        while not any(frame.f_code is join.__code__ for frame, _ in traceback.walk_stack(sys._current_frames()[main])):
            pass
        signal.pthread_kill(main, signal.SIGINT)

    running = [Worker(lambda: released.wait(PATIENCE_S), "running")]
    running[0].start()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        join(running, [*running])
    assert len(running) == 1
    threading.Timer(0.1, released.set).start()
    join(running, [*running])
    assert released.is_set()
    assert running == []


def test_calls_are_made_on_the_calling_thread_where_no_other_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = list[Worker]()
    callers = on_threads(lambda _: threading.current_thread(), range(3), 2, "calls", running=running)
    assert (callers, running) == ([threading.current_thread()] * 3, [])


def test_results_are_in_the_order_of_the_items_although_the_first_call_ends_last() -> None:
    ended = threading.Event()

    def call(item: str) -> str:
        if item == "first":
            assert ended.wait(30)
        else:
            ended.set()
        return item.upper()

    assert call_at_once(call, ["first", "second"], 2) == ["FIRST", "SECOND"]


@pytest.mark.parametrize(("items", "most"), [(["only"], 16), (["first", "second"], 1), ([], 16)])
def test_what_needs_no_second_thread_stays_on_the_callers(items: list[str], most: int) -> None:
    here = threading.current_thread()
    assert call_at_once(lambda _: threading.current_thread(), items, most) == [here for _ in items]


def test_an_error_of_a_call_reaches_the_caller() -> None:
    def call(item: str) -> None:
        if item == "second":
            raise FileNotFoundError(item)

    with pytest.raises(FileNotFoundError, match="second"):
        call_at_once(call, ["first", "second"], 2)


def test_an_error_of_a_call_keeps_nothing_of_its_caller_once_it_is_handled() -> None:
    """Without the garbage collector, which may come late."""

    class Kept:
        pass

    def fail(_: Kept) -> None:
        raise FileNotFoundError

    def failed() -> weakref.ref[Kept]:
        kept = Kept()
        with contextlib.suppress(FileNotFoundError):
            on_threads(fail, [kept], 1, "calls")
        return weakref.ref(kept)

    gc.disable()
    try:
        assert failed()() is None
    finally:
        gc.enable()


def test_a_worker_that_an_interrupt_kept_from_beginning_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        on_threads(lambda _: None, range(3), 2, "calls")
