"""What a Delta table is to the sink in every object store but S3, whose own tests look closer."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Bucket
from tests.support.http_proxy import Answer, HttpProxy, Lost
from tests.support.killed_writer import BEFORE, killed_writer
from tests.support.restarted_query import RestartedQuery
from tests.support.sink_place import from_log
from tests.support.struck_server import StruckServer, Way, strike_requests
from tests.support.typed_records import typed
from twopc import Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, Retriable, RoundAborted, TwoPhaseCommitError
from twopc.stores.remote import ObjectFolder
from twopc.testing import SinkContract
from twopc_delta import DeltaSink
from twopc_delta.log_files import LogFiles


class StoreContract:
    """A subclass has the fixtures ``bucket``, ``proxied`` (the same table, through ``proxy``), ``absent`` (a table in a
    bucket that is not there), ``gone`` (the table at a server that does not answer) and ``secrets`` (values that nobody
    may see).

    Attributes:
        creation: the method of a request that creates an object.
        entry: what the target of one has that creates an entry of the log, but for trials.
        busy: a server's answer that may pass.
        refused: a server's answer to wrong credentials.
        strange: an option that has no counterpart in delta-rs.
    """

    creation: str
    entry = "00000000000000000001.json"
    busy: Answer
    refused: Answer
    strange: str

    def test_batches_are_in_the_table_once(self, bucket: Bucket) -> None:
        for batch_id, value in enumerate("ab"):
            committable = bucket.pre_commit([value], Round(1, batch_id))
            for _ in range(2):
                bucket.sink().commit_batch(batch_id, [committable])
        assert bucket.values() == ["a", "b"]
        assert list(bucket.sink().recover()) == []
        assert [path for path in bucket.objects() if path.endswith(".json")] == []

    def test_a_process_that_goes_on_reads_only_what_is_new(self, bucket: Bucket) -> None:
        """The second batch and the third begin with a kept look, and others write between them."""
        sink = bucket.sink()
        for batch_id in range(3):
            sink.commit_batch(batch_id, sink.seal([bucket.vote(["a"], Round(1, batch_id), sink=sink)], 0.0))
            bucket.append("b")
        assert bucket.values() == ["a"] * 3 + ["b"] * 3
        assert LogFiles(bucket.reached).newest_after(2) == 6

    def test_of_entries_for_one_version_the_store_takes_one(self, bucket: Bucket) -> None:
        """However many put one at the same moment, each with a client of its own."""
        start, wins = threading.Barrier(8), list[int]()

        def put(number: int) -> None:
            log = LogFiles(bucket.reached)
            start.wait()
            with contextlib.suppress(FileExistsError):
                log.put(1, str(number).encode())
                wins.append(number)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number).encode() for number in wins] == [LogFiles(bucket.reached).entry(1)]

    def test_another_writer_of_delta_rs_and_the_sink_lose_nothing_to_each_other(self, bucket: Bucket) -> None:
        def write() -> None:
            for number in range(5):
                bucket.append(f"other {number}")

        thread = threading.Thread(target=write)
        thread.start()
        sink = bucket.sink()
        for batch_id in range(5):
            sealed = sink.seal([bucket.vote([f"own {batch_id}"], Round(1, batch_id), sink=sink)], 0.0)
            sink.commit_batch(batch_id, [from_log(each) for each in sealed])
        thread.join()
        assert bucket.values() == [f"{whose} {number}" for whose in ("other", "own") for number in range(5)]

    def test_a_note_of_an_undecided_transaction_is_found_and_removed(self, bucket: Bucket) -> None:
        bucket.vote(["a"])
        sink = bucket.sink()
        [found] = sink.recover()
        sink.abort(found)
        assert list(sink.recover()) == []
        assert bucket.values() == []

    def test_a_store_that_replaces_an_object_that_is_to_be_created_is_refused(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ObjectFolder, "_create", ObjectFolder.replace)
        with pytest.raises(ConfigurationError, match=r"is in a store that the sink can't use: .*overwrites"):
            bucket.sink()

    def test_a_store_that_does_not_list_names_in_order_is_refused(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = LogFiles._listed_after
        monkeypatch.setattr(LogFiles, "_listed_after", lambda log, _, *limit: listed(log, "", *limit))
        with pytest.raises(ConfigurationError, match="does not list names in order"):
            bucket.sink()
        assert [path for path in bucket.fs.find(bucket.folder) if "probe" in path] == []

    @pytest.mark.parametrize("lost", [Lost.REPLY, pytest.param(Lost.REQUEST, marks=pytest.mark.long)])
    def test_a_lost_request_or_reply_of_the_entry_does_not_lose_or_double_the_batch(
        self, bucket: Bucket, proxied: Bucket, proxy: HttpProxy, lost: Lost
    ) -> None:
        committable = bucket.pre_commit(["a"])
        sink = proxied.sink()
        proxy.disturb_next(self.creation, lost, self.entry)
        while True:
            with contextlib.suppress(Retriable):
                sink.commit_batch(0, [committable])
                break
        assert proxy.is_done
        assert bucket.values() == ["a"]

    @pytest.mark.parametrize(("what", "kind"), [("busy", Retriable), ("refused", OperatorRequired)])
    def test_an_answer_to_the_entry_means_what_it_means_at_s3(
        self, bucket: Bucket, proxied: Bucket, proxy: HttpProxy, what: str, kind: type[TwoPhaseCommitError]
    ) -> None:
        committable = bucket.pre_commit(["a"])
        sink = proxied.sink()
        proxy.disturb_all(self.creation, getattr(self, what), self.entry)
        with pytest.raises(kind):
            sink.commit_batch(0, [committable])
        proxy.heal()
        sink.commit_batch(0, [committable])
        assert bucket.values() == ["a"]

    def test_refused_credentials_call_an_operator(self, bucket: Bucket, proxied: Bucket, proxy: HttpProxy) -> None:
        batch = [bucket.pre_commit(["a"])]
        proxy.disturb_all("GET", self.refused)
        with pytest.raises(ConfigurationError, match="the store refuses"):
            proxied.sink()
        with pytest.raises(OperatorRequired, match="the store refuses"):
            proxied.bound().commit_batch(0, batch)
        with pytest.raises(OperatorRequired, match="the store refuses"):
            list(proxied.bound().recover())

    def test_a_bucket_that_is_not_there_is_refused(self, absent: Bucket) -> None:
        with pytest.raises(ConfigurationError):
            absent.sink()

    def test_a_server_that_does_not_answer_is_asked_again(self, bucket: Bucket, gone: Bucket) -> None:
        committable = bucket.pre_commit(["a"])
        with pytest.raises(Retriable):
            gone.bound().open()
        with pytest.raises(Retriable):
            gone.bound().commit_batch(0, [committable])
        bucket.sink().commit_batch(0, [committable])
        assert bucket.values() == ["a"]

    @pytest.mark.long
    def test_a_task_whose_server_refuses_it_or_is_busy_fails_as_it_does_at_s3(
        self, proxied: Bucket, proxy: HttpProxy
    ) -> None:
        sink = proxied.sink()
        for answer, kind in ((self.busy, RoundAborted), (self.refused, ConfigurationError)):
            proxy.disturb_all(self.creation, answer)
            with pytest.raises(kind):
                proxied.vote(["a"], sink=sink)
            proxy.heal()

    def test_an_option_that_delta_rs_has_no_counterpart_of_is_refused(self, bucket: Bucket) -> None:
        for name in (self.strange, "x"):
            with pytest.raises(ConfigurationError, match=f"has no '{name}' for "):
                bucket.unbound(storage_options={**bucket.storage, name: "x"})

    def test_no_secret_is_in_a_committable_a_note_a_repr_an_error_or_the_log(
        self, bucket: Bucket, absent: Bucket, secrets: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, logger="twopc_delta"):
            committable = bucket.pre_commit(["a"])
        bucket.sink().commit_batch(0, [committable])
        fs = bucket.fs
        objects = [fs.cat_file(path) for path in fs.find(bucket.folder)]
        with pytest.raises(TwoPhaseCommitError) as raised:
            absent.sink()
        told = [repr(committable), repr(bucket.sink()), repr(bucket.reached), caplog.text, str(raised.value)]
        told += [bucket.reached.without_secrets(f"a server repeats {secret}") for secret in secrets]
        for secret in secrets:
            assert not any(secret in text for text in told)
            assert not any(secret.encode() in data for data in objects)

    @pytest.mark.long
    def test_partitions_of_any_name_are_read_back_from_the_store(self, bucket: Bucket) -> None:
        parted = replace(bucket, below="/parted")
        parted.create(pa.schema({"value": pa.string(), "day": pa.string()}), ["day"])
        days = ["50 % = x/y", "ü?*[", "plain", None]
        parted.sink().commit_batch(0, [parted.pre_commit({"value": [*"abcd"], "day": days})])
        assert sorted(str(row["day"]) for row in parted.rows()) == sorted(map(str, days))

    @pytest.mark.parametrize(
        "below",
        ["/a b/ü=1+2", pytest.param("", marks=pytest.mark.long), pytest.param("/what'[1]*", marks=pytest.mark.long)],
    )
    def test_a_table_may_have_any_path_that_both_clients_read_alike(self, bucket: Bucket, below: str) -> None:
        odd = replace(bucket, below=below)
        if below or not odd.fs.exists(f"{odd.folder}/_delta_log"):
            odd.create()
        sink = odd.sink()
        for batch_id in range(2):
            sealed = sink.seal([odd.vote(["a"], Round(1, batch_id), n, sink) for n in range(3)], 0.0)
            sink.commit_batch(batch_id, sealed)
        assert odd.values() == ["a"] * 6
        assert list(sink.recover()) == []

    @pytest.mark.variants
    @pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", "a//b"])
    def test_a_url_that_two_clients_read_differently_is_refused(self, bucket: Bucket, name: str) -> None:
        with pytest.raises(ConfigurationError, match="percent-encoded"):
            bucket.unbound(path=f"{bucket.url}/{name}")

    def test_the_doctor_passes_a_table_and_warns_of_versions_of_spark(self, bucket: Bucket) -> None:
        assert {check.result for check in bucket.sink().check()} == {CheckStatus.PASSED}
        info = {"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "operation": "WRITE"}
        LogFiles(bucket.reached).put(1, json.dumps({"commitInfo": info}).encode())
        [warning] = [check for check in bucket.sink().check() if check.result is CheckStatus.WARNING]
        assert "No test has shown what Spark's log store" in warning.detail

    @pytest.mark.long
    def test_a_long_entry_is_created_by_one_request(self, proxied: Bucket, proxy: HttpProxy) -> None:
        LogFiles(proxied.reached).put(1, b" " * (101 * 1024 * 1024))  # the trial before it is shorter
        assert len([sent for sent in proxy.sent(self.creation) if len(sent.body) > 1024 * 1024]) == 1

    @pytest.mark.long
    def test_a_checkpoint_is_written_and_read_back(self, bucket: Bucket) -> None:
        sink = bucket.sink()
        for batch_id in range(11):
            sink.commit_batch(batch_id, sink.seal([bucket.vote(["a"], Round(1, batch_id), sink=sink)], 0.0))
        assert LogFiles(bucket.reached).last_checkpoint() == 10
        assert bucket.values() == ["a"] * 11
        assert bucket.sink().seal([], 0.0) == []


class TableContract(SinkContract):
    """The contract of every sink. A subclass has the fixtures ``bucket`` and ``typed_bucket``, a table of ``typed``."""

    finds_lost_batches = True
    kills = 15

    @pytest.fixture(autouse=True)
    def _bucket(self, typed_bucket: Bucket) -> None:
        self.bucket = typed_bucket

    def make_sink(self) -> DeltaSink:
        return self.bucket.unbound()

    def visible(self) -> list[str]:
        return self.bucket.values()

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return self.bucket.rows()

    @pytest.mark.crash
    def test_what_a_killed_writer_left_undecided_is_found_and_removed(self, bucket: Bucket) -> None:
        killed_writer("delta", bucket.options, BEFORE)
        sink = bucket.sink()
        [found] = sink.recover()
        sink.abort(found)
        assert list(sink.recover()) == []
        assert bucket.values() == bucket.objects() == []


def require_exact_through_kills(
    proxy: StruckServer, bucket: Bucket, through: Bucket, log: Path, way: Way, lost: int
) -> None:
    """Kill the server of ``proxy`` at requests of a query. ``through`` is the table as the query reaches it."""
    written = strike_requests(proxy, RestartedQuery(through.unbound, log), way, lost)
    assert bucket.values() == written
    assert list(bucket.sink().recover()) == []
