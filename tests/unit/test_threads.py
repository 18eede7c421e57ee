"""Many requests at a time."""

import threading

import pytest

from twopc.threads import in_threads


def test_results_are_in_the_order_of_the_items_although_the_first_call_ends_last() -> None:
    ended = threading.Event()

    def call(item: str) -> str:
        if item == "first":
            assert ended.wait(30)
        else:
            ended.set()
        return item.upper()

    assert in_threads(call, ["first", "second"], 2) == ["FIRST", "SECOND"]


@pytest.mark.parametrize(("items", "most"), [(["only"], 16), (["first", "second"], 1), ([], 16)])
def test_what_needs_no_second_thread_stays_on_the_callers(items: list[str], most: int) -> None:
    here = threading.current_thread()
    assert in_threads(lambda _: threading.current_thread(), items, most) == [here for _ in items]


def test_an_error_of_a_call_reaches_the_caller() -> None:
    def call(item: str) -> None:
        if item == "second":
            raise FileNotFoundError(item)

    with pytest.raises(FileNotFoundError, match="second"):
        in_threads(call, ["first", "second"], 2)
