"""The contract of a log store that is reached over a network, behind a proxy that loses, answers and refuses."""

import pickle
import socket
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import twopc
from tests.stores.conftest import Place
from tests.support.commit_log import CommitLog
from tests.support.http_proxy import Answer, Disturbance, HttpProxy, Lost
from twopc import Committable, Round
from twopc.errors import ConfigurationError, Fenced, InDoubt, OperatorRequired, Retriable, TwoPhaseCommitError
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.entry_json import entry_name
from twopc.log.store import LogStore
from twopc.testing import LogStoreContract

FIRST = Decision(Round(1, 0), {"sink": (Committable("t0", {}, 1),)})


class NetworkLogContract(LogStoreContract):
    """What every store behind HTTP must do with answers that are lost, wrong or refused.

    A subclass sets the attributes, and gives stores that share one folder: ``make_store`` without the proxy, ``store``
    through it.

    Attributes:
        method: the method of the request that creates an entry.
        busy: answers after which the outcome of that request is not known.
        denied: the answer to a request without the right to it, with the text "not for you".
        ignoring: makes the server one that ignores the condition of that request.
        writers: how many processes race.
    """

    races = 5
    method = "PUT"
    busy: Sequence[Answer]
    denied: Answer
    ignoring: Disturbance
    writers = 4
    proxy: HttpProxy

    @abstractmethod
    def store(self) -> LogStore:
        """Return a store whose requests go through the proxy, and whose client repeats none, if it can be told so."""

    @abstractmethod
    def store_at(self, server: str) -> LogStore:
        """Return a store at a server with this host and port."""

    @abstractmethod
    def race(self) -> list[str]:
        """Have several processes put entry 0, and return what became of each."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names in the log's folder, by a client that shares nothing with those under test."""

    def creates(self, name: str) -> Callable[[str], bool]:
        """Return what recognizes, by its target, the request that creates ``name``."""
        return lambda target: name in target

    def store_that_repeats(self, monkeypatch: pytest.MonkeyPatch) -> LogStore:  # of some clients
        """Return a store through the proxy whose client repeats requests by itself."""
        return self.store()

    # ----------------------------------------------------------------------------------------------------------------

    @pytest.mark.long
    def test_of_many_writers_exactly_one_wins_a_slot(self) -> None:
        super().test_of_many_writers_exactly_one_wins_a_slot()

    @pytest.mark.long
    def test_of_many_that_open_at_once_only_the_newest_decides(self) -> None:
        super().test_of_many_that_open_at_once_only_the_newest_decides()

    @pytest.mark.long
    def test_of_processes_that_race_for_a_slot_one_wins(self) -> None:
        outcomes = self.race()
        assert sorted(outcomes) == ["refused"] * (self.writers - 1) + ["won"]
        assert self.make_store().read(0) == str(outcomes.index("won")).encode()

    @pytest.mark.long
    def test_nothing_but_entries_is_left_in_the_folder(self) -> None:
        CommitLog.open(self.store(), "query").close()
        assert self.names() == [entry_name(0), entry_name(1)]

    def test_a_store_travels_to_another_process_with_its_options(self) -> None:
        self.store().put_if_absent(0, b"x")
        assert pickle.loads(pickle.dumps(self.store())).read(0) == b"x"  # noqa: S301  # our own bytes

    @pytest.mark.variants
    @pytest.mark.parametrize("repeats_by_itself", [False, True])
    @pytest.mark.parametrize("lost", Lost)
    def test_a_decision_whose_request_or_reply_is_lost_is_in_the_log_once(
        self, lost: Lost, repeats_by_itself: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = CommitLog.open(self.store_that_repeats(monkeypatch) if repeats_by_itself else self.store(), "query")
        self.proxy.disturb_next(self.method, lost, self.creates(entry_name(1)))
        log.decide(FIRST)
        assert self.proxy.is_done
        assert read_tail(self.make_store()) == (1, log.tail)
        assert (log.tail.decided, self.names()) == (0, [entry_name(0), entry_name(1)])

    def test_an_answer_that_tells_nothing_of_the_entry_is_asked_again(self) -> None:
        log = CommitLog.open(self.store(), "query")
        for batch_id, answer in enumerate(self.busy):
            self.proxy.disturb_next(self.method, answer, self.creates(entry_name(batch_id + 1)))
            log.decide(Decision(Round(1, batch_id), {"sink": ()}))
            assert self.proxy.is_done
        assert read_tail(self.make_store()) == (len(self.busy), log.tail)

    @pytest.mark.long
    def test_a_store_that_goes_on_telling_nothing_leaves_the_decision_in_doubt(self) -> None:
        log = CommitLog.open(self.store(), "query")
        for answer in self.busy[:2]:
            self.proxy.disturb_all(self.method, answer, self.creates(entry_name(1)))
            with pytest.raises(InDoubt, match="/log"):
                log.decide(FIRST)
            self.proxy.heal()
        assert CommitLog.open(self.store(), "query").tail.decided is None

    def test_a_decision_that_cannot_be_read_back_is_in_doubt_and_found_by_the_next_coordinator(self) -> None:
        log = CommitLog.open(self.store(), "query")
        self.proxy.disturb_next(self.method, Lost.REPLY, self.creates(entry_name(1)))
        self.proxy.disturb_all("GET", Answer(500))
        with pytest.raises(InDoubt):
            log.decide(FIRST)
        self.proxy.heal()
        assert CommitLog.open(self.store(), "query").tail.decided == 0

    def test_a_lost_request_whose_slot_a_newer_coordinator_took_is_fenced(self) -> None:
        log = CommitLog.open(self.store(), "query")
        newer = CommitLog.open(self.make_store(), "query")
        self.proxy.disturb_next(self.method, Lost.REQUEST, self.creates(entry_name(1)))
        with pytest.raises(Fenced):
            log.decide(FIRST)
        newer.verify()

    # Stores that can't be used. -------------------------------------------------------------------------------------

    def test_a_server_that_ignores_the_condition_is_refused_before_the_first_entry(self) -> None:
        self.proxy.disturb_all(self.method, self.ignoring, self.creates(".probe"))
        with pytest.raises(ConfigurationError, match="/log: it overwrites a file"):
            self.store().put_if_absent(0, b"x")
        with pytest.raises(TwoPhaseCommitError, match="can't be kept"):
            CommitLog.open(self.store(), "query")
        assert entry_name(0) not in self.names()

    def test_a_store_is_tried_once_and_only_where_something_is_written(self) -> None:
        store = self.store()
        assert store.slots() == []
        assert self.proxy.sent(self.method) == []
        log = CommitLog.open(store, "query")
        log.decide(FIRST)
        CommitLog.open(store, "query")
        created = [request for request in self.proxy.sent(self.method) if self.creates("")(request.target)]
        assert len(created) == 2 + 3  # the trial's, and the entries

    def test_a_trial_whose_reply_is_lost_is_not_taken_for_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = self.store_that_repeats(monkeypatch)
        self.proxy.disturb_next(self.method, Lost.REPLY, self.creates(".probe"))
        CommitLog.open(store, "query")
        assert self.names() == [entry_name(0)]

    def test_a_trial_without_an_answer_is_repeated_with_the_entry(self) -> None:
        self.proxy.disturb_next(self.method, self.busy[0], self.creates(".probe"))
        assert CommitLog.open(self.store(), "query").incarnation == 1
        assert self.proxy.is_done

    def test_rights_that_are_missing_are_told_with_what_the_server_says(self) -> None:
        self.proxy.disturb_all(self.method, self.denied)
        with pytest.raises(ConfigurationError, match=r"nothing may be written there.*not for you"):
            self.store().put_if_absent(0, b"x")
        self.proxy.disturb_all("GET", self.denied)
        with pytest.raises(ConfigurationError, match=r"not let this process read it.*not for you.*credentials"):
            CommitLog.open(self.store(), "query")

    def test_rights_that_are_lost_later_leave_a_decision_in_doubt(self) -> None:
        log = CommitLog.open(self.store(), "query")
        self.proxy.disturb_all(self.method, self.denied, self.creates(entry_name(1)))
        with pytest.raises(InDoubt, match="not for you"):
            log.decide(FIRST)

    @pytest.mark.advice("the store of the commit log at … gave no answer")
    def test_a_server_that_is_not_there_may_be_asked_again(self) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
            store = self.store_at(f"127.0.0.1:{nobody.getsockname()[1]}")
            with pytest.raises(Retriable, match=r"/log gave no answer .*Is it up"):
                CommitLog.open(store, "query")
        CommitLog.open(self.store(), "query")


class ObjectLogContract(NetworkLogContract):
    """What every object store must do besides.

    Attributes:
        unknown: an answer that is in no table, with the text "a teapot".
    """

    unknown: Answer

    bucket: Place

    def store(self) -> LogStore:
        return twopc.open_store(self.bucket.url("log"), **self.bucket.storage_options)

    def names(self) -> list[str]:
        return [name.removeprefix("log/") for name in self.bucket.objects()]

    @pytest.mark.long
    def test_a_log_at_the_top_of_a_bucket_is_fine(self) -> None:
        store = twopc.open_store(self.bucket.url(""), **self.bucket.storage_options)
        CommitLog.open(store, "query")
        assert store.slots() == [0]

    @pytest.mark.advice("there is no such bucket")
    def test_a_bucket_that_is_not_there_is_named(self) -> None:
        absent = replace(self.bucket, name=uuid.uuid4().hex).url("log")
        store = twopc.open_store(absent, **self.bucket.storage_options)
        assert store.slots() == []
        with pytest.raises(ConfigurationError, match=f"{absent}: there is no such bucket"):
            store.put_if_absent(0, b"x")
        with pytest.raises(TwoPhaseCommitError, match="there is no such bucket"):
            CommitLog.open(store, "query")
        CommitLog.open(self.store(), "query")

    @pytest.mark.long
    @pytest.mark.advice("the store of the commit log at … refused a request")
    def test_an_answer_that_no_table_knows_is_told_and_not_taken_for_an_outage(self) -> None:
        self.proxy.disturb_all("GET", self.unknown)
        with pytest.raises(OperatorRequired, match=r"/log refused a request .*a teapot.* start again"):
            self.store().slots()
        self.proxy.heal()
        self.proxy.disturb_all(self.method, self.unknown)
        with pytest.raises(ConfigurationError, match=r"/log: it refuses a trial object .*a teapot"):
            self.store().put_if_absent(0, b"x")
        self.proxy.heal()
        CommitLog.open(self.store(), "query")

    @pytest.mark.long
    def test_a_trial_that_cannot_be_removed_does_not_stop_the_log(self) -> None:
        self.proxy.disturb_all("DELETE", self.denied)
        self.store().put_if_absent(0, b"x")
        assert self.store().slots() == [0]
