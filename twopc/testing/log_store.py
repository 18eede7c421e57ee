"""The contract of a log store as tests. Authors of stores subclass ``LogStoreContract``."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from twopc.checks import CheckStatus
from twopc.errors import Fenced
from twopc.log import steps
from twopc.log.commit_log import on_store, read_tail
from twopc.log.entries import Decision, decided
from twopc.log.steps import ENTRIES_KEPT
from twopc.log.store import CheckedLogStore, LogStore
from twopc.testing.query import answered, error_of
from twopc.transaction import Committable
from twopc.transactional_ids import Round

WRITERS = 8

PATIENCE_S = 60
"""How long a call that raises ``Retriable`` is repeated: a store may be busy, and fsspec's memory can't list a folder
while another thread deletes in it."""


class LogStoreContract(ABC):
    """Tests for every log store. pytest collects them in a subclass whose name starts with Test.

    Each test calls ``make_store`` several times: the stores share one folder, as processes do.
    """

    races = 20
    """How many slots the writers race for. Each slot may have a different winner."""

    @abstractmethod
    def make_store(self) -> LogStore:
        """Return a new store, with its own client, on the current test's folder, which is empty at first."""

    # Entries. ---------------------------------------------------------------------------------------------------

    def test_a_folder_that_is_not_there_has_no_slots(self) -> None:
        assert self.make_store().slots() == []

    def test_an_entry_that_is_not_there_is_not_found(self) -> None:
        store = self.make_store()
        store.put_if_absent(1, b"one")
        assert isinstance(error_of(store.read, 0), FileNotFoundError)

    def test_what_one_process_puts_another_reads_whole(self) -> None:
        data = bytes(range(256)) * 4096
        self.make_store().put_if_absent(3, data)
        assert self.make_store().read(3) == data

    def test_slots_ascend_as_numbers(self) -> None:
        store = self.make_store()
        for slot in (10, 9, 100, 0, 2**63):
            store.put_if_absent(slot, b"x")
        assert store.slots() == [0, 9, 10, 100, 2**63]

    def test_what_was_put_is_listed_at_once_also_by_who_listed_before(self) -> None:
        one, other = self.make_store(), self.make_store()
        for slot in range(3):
            assert one.slots() == other.slots() == list(range(slot))
            one.put_if_absent(slot, b"x")
        other.delete(0)
        assert one.slots() == other.slots() == [1, 2]

    def test_deleting_what_is_not_there_is_a_success(self) -> None:
        store = self.make_store()
        store.put_if_absent(0, b"x")
        store.delete(0)
        store.delete(0)
        assert store.slots() == []

    def test_a_notice_is_replaced_and_is_no_entry(self) -> None:
        store = self.make_store()
        assert store.posted() == b""
        store.put_if_absent(0, b"x")
        for data in (b"first", b"second", b""):
            store.post(data)
            assert self.make_store().posted() == data
        assert store.slots() == [0]

    def test_a_check_that_the_store_has_passes_and_leaves_no_entry(self) -> None:
        store = self.make_store()
        for slots in ([], [0]):
            if isinstance(store, CheckedLogStore):
                assert CheckStatus.FAILED not in [check.result for check in store.check()]
            assert self.make_store().slots() == slots
            store.put_if_absent(len(slots), b"x")

    # Put-if-absent. ---------------------------------------------------------------------------------------------

    def test_a_taken_slot_is_refused_and_unchanged(self) -> None:
        one, other = self.make_store(), self.make_store()
        one.put_if_absent(0, b"first")
        for store in (one, other):
            assert isinstance(error_of(store.put_if_absent, 0, b"second"), FileExistsError)
        assert one.read(0) == b"first"

    def test_of_many_writers_exactly_one_wins_a_slot(self) -> None:
        stores = [self.make_store() for _ in range(WRITERS)]
        for number, store in enumerate(stores):  # one at a time, because a trial precedes a store's first entry
            store.put_if_absent(self.races + number, b"")
        barrier = threading.Barrier(WRITERS)

        def put(store: LogStore, slot: int, data: bytes) -> bool:
            barrier.wait()
            try:
                store.put_if_absent(slot, data)
            except FileExistsError:
                return False
            return True

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads take turns as often as they can
        try:
            with ThreadPoolExecutor(WRITERS) as pool:
                for slot in range(self.races):
                    entries = [f"{slot}-{writer}".encode() for writer in range(WRITERS)]
                    won = list(pool.map(put, stores, [slot] * WRITERS, entries))
                    assert won.count(True) == 1
                    assert stores[0].read(slot) == entries[won.index(True)]
        finally:
            sys.setswitchinterval(interval)

    # A commit log in the store. ---------------------------------------------------------------------------------

    def test_the_older_of_two_coordinators_is_fenced(self) -> None:
        older = _Log(self.make_store())
        older.verify()
        newer = _Log(self.make_store())
        assert isinstance(error_of(older.decide, _decision(0, 1)), Fenced)
        assert isinstance(error_of(older.verify), Fenced)
        newer.decide(_decision(0, 2))
        assert read_tail(self.make_store()) == (2, newer.view.tail)

    def test_of_many_that_open_at_once_only_the_newest_decides(self) -> None:
        stores = [self.make_store() for _ in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            logs = list(pool.map(lambda store: answered(PATIENCE_S, _Log, store), stores))
        assert len({log.view.incarnation for log in logs}) == WRITERS
        assert len({log.view.tail.log_id for log in logs}) == 1
        *older, newest = sorted(logs, key=lambda log: log.view.incarnation)
        for log in older:
            assert isinstance(error_of(log.decide, _decision(0, log.view.incarnation)), Fenced)
        newest.decide(_decision(0, newest.view.incarnation))

    def test_pruning_bounds_the_number_of_entries_also_where_its_process_is_killed_amid_it(self) -> None:
        batch_ids = itertools.count()
        for deletes in (0, 1, 7):
            with contextlib.suppress(_Died):
                log = _Log(_DiesAtADelete(self.make_store(), deletes))
                while True:
                    log.decide(_decision(next(batch_ids), log.view.incarnation))
            newer = _Log(self.make_store())
            assert newer.view.tail.decided == log.view.tail.decided
            slots = self.make_store().slots()
            assert slots == list(range(slots[0], slots[-1] + 1))
            assert len(slots) == ENTRIES_KEPT + 1

    def test_a_zombie_whose_slot_was_pruned_meanwhile_has_decided_nothing(self) -> None:
        zombie = _Log(self.make_store())
        store = self.make_store()
        newer = _Log(store)
        for batch_id in range(2 * ENTRIES_KEPT):
            newer.decide(_decision(batch_id, 2))
        assert 1 not in store.slots()
        assert isinstance(error_of(zombie.decide, _decision(0, 1)), Fenced)
        newer.verify()
        assert _Log(self.make_store()).view.tail.decided == newer.view.tail.decided


class _Log:
    """A new incarnation of the query whose log is in a store."""

    def __init__(self, store: LogStore) -> None:
        self._store, self.view = store, on_store(store, steps.open_log(store.url, "query", None))

    def decide(self, decision: Decision) -> None:
        on_store(self._store, steps.append(self.view, decided(self.view.tail, decision)))

    def verify(self) -> None:
        on_store(self._store, steps.verify(self.view))


class _Died(BaseException):
    """Ends a coordinator like a kill."""


class _DiesAtADelete:
    """A store whose process dies at a delete, after ``deletes`` successful ones."""

    def __init__(self, store: LogStore, deletes: int) -> None:
        self.url = store.url
        self.slots, self.read, self.put_if_absent = store.slots, store.read, store.put_if_absent
        self.post, self.posted = store.post, store.posted
        self._delete, self._deletes = store.delete, deletes

    def delete(self, slot: int) -> None:
        if self._deletes == 0:
            raise _Died
        self._deletes -= 1
        self._delete(slot)


def _decision(batch_id: int, incarnation: int) -> Decision:
    return Decision(Round(incarnation, batch_id), {"sink": (Committable(f"t{batch_id}", {}, 1),)})
