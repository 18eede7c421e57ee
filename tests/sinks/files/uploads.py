"""The contract of stores that hold uploads open: S3 and Azure, behind a proxy that loses and changes replies."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from tests.sinks.files.conftest import Place
from tests.support.http_proxy import Answer, Disturbance, HttpProxy, Lost
from tests.support.raising import raising
from twopc import Committable, Coordinator, Participant, Round
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    TwoPhaseCommitError,
)
from twopc_files.file_names import FileHandle, decidable_files
from twopc_files.sink import FileSink

Replies: TypeAlias = Sequence[tuple[Disturbance, type[TwoPhaseCommitError]]]
Secrets: TypeAlias = tuple[Sequence[Place], Sequence[str]]
"""Places that are reached through the proxy, and the secrets in their options."""

FILES = 8
MIB = 1024 * 1024
ID = "twopc.log.orders.1.0.0.0.0"
TARGET = f"part-{0:020d}-00000-00000-{ID}.json"


def the_file(committable: Committable) -> FileHandle:
    [file] = decidable_files(committable)
    return file


def upload(place: Place, contents: bytes) -> FileHandle:
    """Write a pending file, in pieces that are neither parts nor blocks."""
    with place.store.create(ID, 0, TARGET) as file:
        for start in range(0, len(contents), 3 * MIB + 1):
            file.write(contents[start : start + 3 * MIB + 1])
    return file.handle


def run_one_batch(place: Place, log: Path) -> None:
    """Start a query, which must not get as far as its first batch."""
    with Coordinator({"orders": place.sink().unbound()}, str(log), owner="query") as coordinator:
        coordinator.run(0, raising(AssertionError("the batch was begun")))


def one_batch(sink: FileSink, round: Round) -> list[Any]:
    """Return the votes of ``FILES`` tasks."""
    votes = []
    for partition in range(FILES):
        with Participant({"orders": sink}, round, partition=partition) as participant:
            participant.write("orders", pa.record_batch({"value": [f"{round.batch_id}-{partition}"]}))
            votes.append(participant.pre_commit())
    return votes


class PublicationContract:
    """What proves that a file is published: an object with the transaction's mark, and nothing else.

    Attributes:
        publication: method and part of the target of the request that publishes a file.
        accepted: the answer of a server that has published it.
    """

    publication: tuple[str, str]
    accepted: Answer

    def put(self, place: Place, target: str, contents: bytes, owner: str) -> None:
        """Put an object with the mark of the transaction ``owner``."""
        raise NotImplementedError

    def test_a_publication_that_is_accepted_and_makes_no_file_is_no_success_and_is_repeated(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        committable = proxied.pre_commit(batch_id=7)
        method, target = self.publication
        proxy.disturb_next(method, self.accepted, target)
        with pytest.raises(Retriable, match=r"batch 7.*has not appeared"):
            proxied.sink().commit(committable)
        assert proxied.targets() == []
        proxied.sink().commit(committable)
        assert proxied.values() == ["a", "b"]

    @pytest.mark.parametrize(("contents", "owner"), [(b"abc", "another"), (b"x", ID)], ids=["another's", "length"])
    def test_an_object_that_is_not_the_transactions_own_and_whole_does_not_prove_a_publication(
        self, contents: bytes, owner: str, proxied: Place, proxy: HttpProxy
    ) -> None:
        handle = upload(proxied, b"abc")
        seen = proxied.store.look(handle)
        self.put(proxied, TARGET, contents, owner)
        method, target = self.publication
        proxy.disturb_next(method, self.accepted, target)
        with pytest.raises(OSError, match="has not appeared as this transaction's file"):
            proxied.store.publish(handle, seen)

    def test_an_object_in_the_place_of_a_file_that_is_gone_is_a_strangers_or_in_doubt(self, proxied: Place) -> None:
        committable = proxied.pre_commit()
        file = the_file(committable)
        proxied.store.discard(file)
        self.put(proxied, file.target, b"x" * (file.size_bytes or 0), "another")
        with pytest.raises(OperatorRequired, match="a foreign file has the target's name"):
            proxied.sink().commit(committable)
        self.put(proxied, file.target, b"x", committable.transaction_id)
        with pytest.raises(OutcomeUnknown, match="has 1 bytes"):
            proxied.sink().commit(committable)


class UploadContract(PublicationContract):
    """What the sink does about each reply, and about none.

    A module has the fixtures ``proxied``, a place whose client repeats nothing that a server has answered,
    ``repeating``, one whose client repeats, ``gone``, the same place at a server that is not there, ``absent``, a place
    that nobody has made, and ``secrets``.

    Attributes:
        part: the same of the request that uploads a part.
        creation: the same of the first request of a file.
        replies: bad replies to the publication, with the error of the commit.
        questions: bad replies to looks at a file, with the error of the commit.
        busy, denied, unauthenticated: such answers. The last one has the message "who are you".
        parts_of_nothing: the sizes of the parts of an empty file.
        absent_is: what the server says of a place that nobody has made.
        sends_lost: how often the client's HTTP library sends a request whose reply is lost.
    """

    part: tuple[str, str]
    creation: tuple[str, str]
    replies: Replies
    questions: Replies
    busy: Answer
    denied: Answer
    unauthenticated: Answer
    parts_of_nothing: Sequence[int]
    absent_is: str
    sends_lost = 1

    @pytest.mark.variants
    @pytest.mark.parametrize(
        "size_bytes", [8 * MIB + 1, 0, 10, 5 * MIB - 1, 8 * MIB, pytest.param(60 * MIB, marks=pytest.mark.long)]
    )
    def test_a_file_of_any_size_goes_up_in_parts_and_comes_out_as_it_was(
        self, size_bytes: int, proxied: Place, proxy: HttpProxy
    ) -> None:
        contents = (os.urandom(1024) * (size_bytes // 1024 + 1))[:size_bytes]
        handle = upload(proxied, contents)
        assert handle.size_bytes == size_bytes
        whole, rest = divmod(size_bytes, 8 * MIB)
        expected = [*[8 * MIB] * whole, *[rest] * bool(rest)] or self.parts_of_nothing
        assert [len(request.body) for request in proxy.sent(*self.part)] == list(expected)
        assert proxied.targets() == []
        proxied.store.publish(handle, proxied.store.look(handle))
        assert proxied.fs.cat_file(proxied.path(TARGET)) == contents

    def test_a_file_that_is_published_is_committed_and_is_not_published_again(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        committable = proxied.pre_commit()
        for _ in range(2):
            proxied.sink().commit(committable)
        assert len(proxy.sent(*self.publication)) == 1
        assert proxied.values() == ["a", "b"]

    @pytest.mark.long
    def test_a_publication_without_a_good_reply_is_no_success_and_a_later_commit_completes(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        method, target = self.publication
        for batch_id, (reply, expected) in enumerate(self.replies):
            committable = proxied.pre_commit(batch_id=batch_id)
            for _ in range(self.sends_lost if isinstance(reply, Lost) else 1):
                proxy.disturb_next(method, reply, target)
            with pytest.raises(TwoPhaseCommitError, match=f"batch {batch_id}") as error:
                proxied.sink().commit(committable)
            assert (type(error.value), proxy.is_done) == (expected, True), reply
            proxied.sink().commit(committable)
        assert sorted(proxied.values()) == sorted("ab" * len(self.replies))
        assert list(proxied.sink().recover()) == []

    def test_a_question_without_an_answer_is_not_taken_for_an_absent_file(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        cases = [(method, *case) for method in ("GET", "HEAD") for case in self.questions]
        for batch_id, (method, reply, expected) in enumerate(cases):
            committable = proxied.pre_commit(batch_id=batch_id)
            proxy.disturb_all(method, reply, committable.transaction_id)
            with pytest.raises(TwoPhaseCommitError) as error:
                proxied.sink().commit(committable)
            assert type(error.value) is expected, (method, reply)
            proxy.heal()
            proxied.sink().commit(committable)
        assert sorted(proxied.values()) == sorted("ab" * len(cases))

    def test_a_client_that_repeats_a_publication_whose_reply_was_lost_finds_it_committed(
        self, repeating: Place, proxy: HttpProxy
    ) -> None:
        committable = repeating.pre_commit()
        method, target = self.publication
        proxy.disturb_next(method, Lost.REPLY, target)
        repeating.sink().commit(committable)
        assert len(proxy.sent(method, target)) == 2
        assert repeating.values() == ["a", "b"]

    def test_a_part_whose_request_or_reply_was_lost_is_uploaded_again_and_is_there_once(
        self, repeating: Place, proxy: HttpProxy
    ) -> None:
        method, target = self.part
        replies: Sequence[Disturbance] = (Lost.REQUEST, Lost.REPLY, self.busy)
        for batch_id, reply in enumerate(replies):
            proxy.disturb_next(method, reply, target)
            repeating.sink().commit(repeating.pre_commit(batch_id=batch_id))
            assert proxy.is_done
        assert sorted(repeating.values()) == sorted("ab" * 3)

    @pytest.mark.parametrize("request_of", ["part", "creation"])
    def test_a_file_that_cannot_be_uploaded_is_a_vote_of_no_and_leaves_nothing(
        self, request_of: str, proxied: Place, proxy: HttpProxy
    ) -> None:
        method, target = getattr(self, request_of)
        proxy.disturb_all(method, self.busy, target)
        with pytest.raises(OSError, match=r"batch 7.*Nothing of it is visible"):
            proxied.pre_commit(batch_id=7)
        proxy.heal()
        proxy.disturb_all(method, self.denied, target)
        with pytest.raises(ConfigurationError, match=r"batch 7.*Nothing of it is visible.*not for you"):
            proxied.pre_commit(batch_id=7)
        assert list(proxied.sink().recover()) == []

    def test_a_server_that_is_gone_is_asked_again_without_a_verdict(self, proxied: Place, gone: Place) -> None:
        committable = proxied.pre_commit()
        for ask in (gone.sink().open, partial(gone.sink().commit, committable), lambda: list(gone.sink().recover())):
            with pytest.raises(Retriable):
                ask()

    def test_a_place_that_nobody_has_made_is_refused_before_anything_is_written(
        self, absent: Place, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigurationError, match=rf"{absent.url}.*{self.absent_is}.*'path'"):
            run_one_batch(absent, tmp_path / "log")

    @pytest.mark.advice("the file sink's store at … refused a request")
    def test_an_answer_that_no_table_knows_stops_the_query_with_the_servers_words(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        """It is not repeated as if it were known to pass."""
        sink = proxied.sink()
        proxy.disturb_all("GET", Answer(418, b"<Error><Code>Teapot</Code></Error>", (("x-ms-error-code", "Teapot"),)))
        with pytest.raises(OperatorRequired, match=r"refused a request: .*Teapot.*start again"):
            list(sink.recover())
        with pytest.raises(ConfigurationError, match="Teapot"):
            sink.open()
        proxy.heal()
        sink.open()
        sink.commit(proxied.pre_commit())
        assert proxied.values() == ["a", "b"]

    @pytest.mark.long
    def test_batches_of_many_files_go_through_a_coordinator_with_a_server_that_is_busy_now_and_then(
        self, proxied: Place, proxy: HttpProxy, tmp_path: Path
    ) -> None:
        sink = proxied.sink().unbound()
        method, target = self.publication
        with Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query") as coordinator:
            for batch_id in range(2):
                for _ in range(3):
                    proxy.disturb_next(method, self.busy, target)
                coordinator.run(batch_id, partial(one_batch, sink))
        assert proxy.is_done
        expected = sorted(f"{batch}-{partition}" for batch in range(2) for partition in range(FILES))
        assert sorted(proxied.values()) == expected
        assert list(proxied.sink().recover()) == []

    @pytest.mark.long
    def test_credentials_are_in_no_log_entry_error_or_repr(
        self, secrets: Secrets, proxy: HttpProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG", logger="twopc")
        told: list[object] = []
        for number, place in enumerate(secrets[0]):
            proxy.heal()
            told += [place.sink(), place.store, vars(place.sink())]
            sink = place.sink().unbound()
            with Coordinator({"orders": sink}, str(tmp_path / f"log{number}"), owner="query") as coordinator:
                coordinator.run(0, partial(one_batch, sink))
            committable = place.pre_commit(batch_id=1)
            told.append(committable.to_json())
            for method in ("GET", "HEAD", "PUT", "POST"):
                proxy.disturb_all(method, self.unauthenticated)
            for ask in (
                place.sink().open,
                partial(place.sink().seal, [committable], age_s=0),
                partial(place.sink().commit, committable),
                partial(place.pre_commit, batch_id=2),
            ):
                with pytest.raises((Refused, OperatorRequired)) as refused:
                    ask()
                told += [refused.value, refused.value.__cause__, refused.getrepr(style="native")]
        entries = "".join(path.read_text() for log in tmp_path.glob("log*") for path in log.iterdir())
        text = "\n".join([*map(repr, told), *map(str, told), entries, caplog.text])
        assert "who are you" in text
        assert [secret for secret in secrets[1] if secret in text] == []


class RemovalContract:
    """What the sink does when a published file's pending object can't be removed.

    Attributes:
        removals: bad replies to the removal, with the error of the commit.
    """

    removals: Replies

    def test_a_pending_object_that_is_not_removed_is_removed_by_a_repeated_commit(
        self, proxied: Place, proxy: HttpProxy
    ) -> None:
        for batch_id, (reply, expected) in enumerate(self.removals):
            committable = proxied.pre_commit(batch_id=batch_id)
            proxy.disturb_all("DELETE", reply)
            with pytest.raises(TwoPhaseCommitError, match="is published") as error:
                proxied.sink().commit(committable)
            assert type(error.value) is expected, reply
            proxy.heal()
            proxied.sink().commit(committable)
        assert len(proxied.files()) == len(proxied.targets()) == len(self.removals)
        assert sorted(proxied.values()) == sorted("ab" * len(self.removals))
