"""The rows of a batch's keys are found in the files of a table, however many of them a search takes at a time."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from twopc import keyed
from twopc.keyed import Part, find_rows, in_shares
from twopc.threads import Worker

COLUMNS = {
    "int": pa.array([0, None, 7, -1, 7, 2**40], pa.int64()),
    "decimal": pa.array([Decimal("0.00"), Decimal("1.50"), None, Decimal("-1.50"), Decimal("1.50"), Decimal("15.00")]),
    "text": pa.array(["", None, "a", "A", "ä", "a\0"], pa.large_string()),
    "bytes": pa.array([b"", b"a", b"a\0", None, b"b", b"a"]),
    "day": pa.array([date(1970, 1, 1), None, date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(2026, 1, 1)]),
    "at": pa.array([datetime(2026, 1, 1, microsecond=n or 1, tzinfo=timezone.utc) for n in range(5)] + [None]),
    "flag": pa.array([True, False, None, True, False, True]),
}
ROWS = 6
NEVER = threading.Event()


def parts(table: pa.Table, rows_of_parts: list[int], may_have: pa.BooleanArray) -> Iterator[Part[str]]:
    """Two files with the same rows, in parts."""
    for file in ("a", "b"):
        first = 0
        for rows in rows_of_parts:
            columns = [column.combine_chunks() for column in table.slice(first, rows).columns]
            yield Part(file, first, columns, may_have)
            first += rows


@pytest.mark.parametrize("rows_at_once", [1, 4, 100])
@pytest.mark.parametrize("key", [*([name] for name in COLUMNS), ["int", "text"], ["flag", "decimal"], [*COLUMNS]])
def test_rows_are_found_by_equal_keys_and_nulls_by_none(
    key: list[str], rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "ROWS_AT_ONCE", rows_at_once)
    table = pa.table({name: COLUMNS[name] for name in key})
    rows = [tuple(row.values()) for row in table.to_pylist()]
    whole = [row for row in rows if None not in row]
    for wanted in (whole[:1], whole[::2], whole):
        keys = table.filter([row in wanted for row in rows])
        found: dict[str, list[int]] = {"a": [], "b": []}
        any_key = pa.repeat(pa.scalar(True), keys.num_rows)
        for file, positions in find_rows(keys, parts(table, [2, 1, 3], any_key), NEVER):
            found[file] += positions
        expected = [place for place, row in enumerate(rows) if row in wanted]
        assert found == {"a": expected, "b": expected}


def test_keys_are_hashed_once_for_as_many_rows_as_there_are_keys_that_they_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed, "ROWS_AT_ONCE", 2)
    search, hashed = keyed._positions_of, list[tuple[int, int]]()

    def counted(keys: pa.Table, columns: list[pa.ChunkedArray]) -> pa.Array:
        hashed.append((keys.num_rows, len(columns[0])))
        return search(keys, columns)

    monkeypatch.setattr(keyed, "_positions_of", counted)
    table = pa.table({"int": range(ROWS)})
    keys = pa.table({"int": range(100, 108)})
    for wanted, expected in ((8, [(8, 8), (8, 4)]), (3, [(3, 4), (3, 4), (3, 4)])):
        hashed.clear()
        may_have = pa.array([number < wanted for number in range(8)])
        assert [*find_rows(keys, parts(table, [2, 2, 2], may_have), NEVER)] == []
        assert hashed == expected


def test_rows_of_many_bytes_are_searched_before_there_are_as_many_as_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would refuse to bring the rows of a ``string`` together above 2 GiB."""
    searched = list[int]()
    search = keyed._positions_of

    def counted(keys: pa.Table, columns: list[pa.ChunkedArray]) -> pa.Array:
        searched.append(len(columns[0]))
        return search(keys, columns)

    monkeypatch.setattr(keyed, "_positions_of", counted)
    keys = pa.table({"text": ["a" * 92] * 8})  # 96 bytes each
    table, any_key = pa.table({"text": ["b" * 92] * ROWS}), pa.repeat(pa.scalar(True), 8)
    for bytes_at_once, expected in ((2**25, [12]), (1, [1] * 12), (400, [5, 5, 2])):
        searched.clear()
        monkeypatch.setattr(keyed, "BYTES_AT_ONCE", bytes_at_once)
        assert [*find_rows(keys, parts(table, [1] * ROWS, any_key), NEVER)] == []
        assert searched == expected


def test_a_part_whose_bounds_tell_nothing_does_not_hide_the_keys_of_another() -> None:
    keys, columns = pa.table({"text": ["a"]}), [pa.array(["a"])]
    given = [Part(file, 0, columns, pa.array([may_have], pa.bool_())) for file, may_have in (("a", True), ("b", None))]
    assert [file for file, _ in find_rows(keys, given, NEVER)] == ["a", "b"]


@pytest.mark.parametrize(("files", "is_local", "threads"), [(0, True, 1), (1, False, 1), (20, True, 2), (20, False, 8)])
def test_each_file_is_searched_once_on_a_disk_by_a_thread_per_processor(
    files: int, is_local: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    shares = in_shares(lambda share, _: [*share], range(files), is_local)
    assert sorted(itertools.chain.from_iterable(shares)) == [*range(files)]
    assert len(shares) == threads


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_search_at_the_next_part(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, given_up_by, begun = pa.table({"int": [1]}), time.monotonic() + 30, threading.Barrier(3)

    def parts_without_end() -> Iterator[Part[str]]:
        begun.wait(30)
        while time.monotonic() < given_up_by:
            yield Part("a", 0, [pa.array([2])], pa.array([True]))

    def search(_: object, given_up: threading.Event) -> list[object]:
        assert threading.current_thread().daemon
        return [*find_rows(keys, parts_without_end(), given_up)]

    def interrupt() -> None:
        begun.wait(30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        in_shares(search, range(2), True)
    interrupting.join(30)
    assert time.monotonic() < given_up_by
    assert [each for each in threading.enumerate() if isinstance(each, Worker) and not each.ended.is_set()] == []


def test_files_are_searched_on_the_calling_thread_where_no_other_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    shares = in_shares(lambda share, _: [*share], range(20), False)
    assert sorted(itertools.chain.from_iterable(shares)) == [*range(20)]
