"""Staged copies at stores other than a disk: there when they are finished, listed as they are, gone when removed."""

import pickle
import uuid
from collections.abc import Iterator

import fsspec
import pyarrow as pa
import pytest

from tests.stores.conftest import Bucket, GcsBucket
from tests.support.gcs_server import BUILD_AT_MOST_S
from tests.support.http_proxy import FRAMED, Answer, Changed, Lost, s3_error
from twopc import Committable, Coordinator, Participant, Round, TransactionId, Vote
from twopc.replay import ReplayCopies
from twopc.testing import MemorySink, MemoryTarget

pytestmark = pytest.mark.in_turn("stage")

SCHEMA = pa.schema([("value", pa.string())])
RECORDS = pa.record_batch({"value": ["a", "b"]})
TRANSACTION = TransactionId("twopc", "log", "sink", Round(1, 0), partition=0, serial=0, replay=0)


@pytest.fixture(params=["s3", pytest.param("gcs", marks=pytest.mark.timeout(BUILD_AT_MOST_S)), "memory"])
def stage(request: pytest.FixtureRequest) -> ReplayCopies:
    if request.param == "memory":
        return ReplayCopies(f"memory://{uuid.uuid4().hex}")
    bucket: Bucket | GcsBucket = request.getfixturevalue("bucket" if request.param == "s3" else "gcs_bucket")
    return ReplayCopies(bucket.url("stage"), bucket.storage_options)


def of_another_process(stage: ReplayCopies) -> ReplayCopies:
    copy: ReplayCopies = pickle.loads(pickle.dumps(stage))  # noqa: S301  # our own bytes
    return copy


def staged(stage: ReplayCopies, *batches: pa.RecordBatch) -> str:
    copy = stage.create(TRANSACTION, SCHEMA)
    for batch in batches:
        copy.write(batch)
    return copy.finish()


@pytest.mark.variants
def test_a_finished_copy_is_read_by_another_process(stage: ReplayCopies) -> None:
    name = staged(stage, RECORDS, RECORDS)
    other = of_another_process(stage)
    assert other == stage
    assert other.names() == [(name, TRANSACTION.exact)]
    assert list(other.read(name)) == [RECORDS, RECORDS]


def test_a_copy_that_is_not_there_is_not_found(stage: ReplayCopies) -> None:
    assert stage.names() == []
    with pytest.raises(FileNotFoundError):
        list(stage.read("absent.arrow"))
    stage.remove("absent.arrow")


@pytest.mark.variants
def test_what_another_process_stages_and_removes_is_listed_at_once(stage: ReplayCopies) -> None:
    other = of_another_process(stage)
    assert stage.names() == other.names() == []
    name = staged(other, RECORDS)
    assert stage.names() == other.names() == [(name, TRANSACTION.exact)]
    stage.remove(name)
    assert stage.names() == other.names() == []


@pytest.mark.variants
def test_a_copy_that_is_discarded_is_gone(stage: ReplayCopies) -> None:
    copy = stage.create(TRANSACTION, SCHEMA)
    copy.write(RECORDS)
    copy.discard()
    assert stage.names() == []


# On S3. -----------------------------------------------------------------------------------------------------------


def on_s3(bucket: Bucket, **options: object) -> ReplayCopies:
    return ReplayCopies(bucket.url("stage"), {**bucket.storage_options, **options})


def test_nothing_of_a_copy_is_there_before_it_is_finished(bucket: Bucket) -> None:
    copy = on_s3(bucket).create(TRANSACTION, SCHEMA)
    copy.write(RECORDS)
    assert bucket.objects() == []
    name = copy.finish()
    assert bucket.objects() == [f"stage/{name}"]


@pytest.mark.long
def test_a_copy_of_many_parts_is_read_as_it_was_written(bucket: Bucket) -> None:
    stage = on_s3(bucket, default_block_size=5 * 2**20)
    large = pa.record_batch({"value": ["x" * 1000] * 4000})
    name = staged(stage, large, large, large)
    assert len(bucket.proxy.sent("PUT", "partNumber=")) >= 2
    assert list(stage.read(name)) == [large, large, large]


@pytest.mark.variants
@pytest.mark.parametrize("answer", [Lost.REQUEST, Answer(500), s3_error(403, "AccessDenied"), FRAMED])
def test_a_copy_that_is_not_stored_is_no_vote(answer: Lost | Answer | Changed, bucket: Bucket) -> None:
    """Upholds: what is decided can be written again."""
    sink = MemorySink(MemoryTarget())
    sink.may_time_out = True
    sink.bind("sink", "log", on_s3(bucket))
    bucket.proxy.disturb_all("PUT", answer)

    def vote() -> None:
        with Participant({"sink": sink}, Round(1, 0), partition=0) as participant:
            participant.write("sink", RECORDS)
            participant.pre_commit()

    with pytest.raises(Exception, match=r".+"):
        vote()
    assert bucket.objects() == []
    assert sink.target.open == {}


class ForgetfulSink(MemorySink):
    """Of a target that rolls back by itself what is decided: the first time that it is to commit."""

    may_time_out = True
    has_forgotten = False

    def commit(self, committable: Committable) -> None:
        if not self.has_forgotten:
            self.has_forgotten = True
            self.target.open.clear()
        super().commit(committable)


@pytest.mark.long
def test_what_a_target_rolled_back_is_written_again_from_a_copy_on_s3(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", bucket.storage_options)
    sink = ForgetfulSink(MemoryTarget())
    seen: list[str] = []

    def phase_one(round: Round) -> Iterator[Vote]:
        with Participant({"sink": sink}, round, partition=0) as participant:
            participant.write("sink", RECORDS)
            yield participant.pre_commit()
        seen.extend(bucket.objects())

    with Coordinator(
        {"sink": sink}, bucket.url("log"), owner="query", replay_copies=bucket.url("stage")
    ) as coordinator:
        coordinator.run(0, phase_one)
    assert [key for key in seen if key.startswith("stage/")] != []
    assert sink.target.visible == RECORDS.to_pylist()
    assert [key for key in bucket.objects() if key.startswith("stage/")] == []


def test_a_copy_that_cannot_be_discarded_does_not_hide_why(bucket: Bucket) -> None:
    copy = on_s3(bucket).create(TRANSACTION, SCHEMA)
    bucket.proxy.disturb_all("PUT", s3_error(403, "AccessDenied"))
    bucket.proxy.disturb_all("DELETE", s3_error(403, "AccessDenied"))
    copy.discard()


def test_a_copy_whose_reply_is_lost_is_stored_once(bucket: Bucket) -> None:
    stage = ReplayCopies(bucket.url("stage"), bucket.repeating)
    bucket.proxy.disturb_next("PUT", Lost.REPLY)
    name = staged(stage, RECORDS)
    assert bucket.proxy.is_done
    assert list(stage.read(name)) == [RECORDS]
