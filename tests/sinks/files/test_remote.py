"""Stores that publish by a rename or a copy of fsspec's."""

import errno

import pytest

from tests.sinks.files.conftest import Place
from tests.support.raising import raising
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, TwoPhaseCommitError


@pytest.mark.variants
@pytest.mark.parametrize(("kind", "call"), [("renaming", "mv"), ("memory", "cp_file")])
def test_a_rename_or_copy_that_the_store_refuses_without_a_word_is_repeated(
    kind: str, call: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = request.getfixturevalue(kind)
    committable = place.pre_commit()
    with monkeypatch.context() as patched:
        patched.setattr(type(place.fs), call, lambda *_: None)
        with pytest.raises(Retriable, match="has not appeared"):
            place.sink().commit(committable)
    place.sink().commit(committable)
    assert place.values() == ["a", "b"]


def test_a_folder_that_is_not_there_is_in_doubt_and_not_lost(renaming: Place) -> None:
    committable = renaming.pre_commit()
    renaming.fs.mv(renaming.path("").rstrip("/"), renaming.path("").rstrip("/") + "-moved")
    with pytest.raises(OutcomeUnknown, match="is not there"):
        renaming.sink().commit(committable)


def test_a_store_that_can_not_be_made_is_refused_at_the_start(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = raising(ImportError("the client library is not installed"))
    monkeypatch.setattr("twopc_files.stores.remote.file_system", fail)
    with pytest.raises(ConfigurationError, match=r"memory://.*not installed.*Nothing was written"):
        memory.sink().open()


def test_a_missing_hadoop_client_is_told_in_one_line(renaming: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = raising(OSError("Unable to load libjvm\n" + "dlopen(libjvm.so) failed: no such file\n" * 90))
    monkeypatch.setattr("twopc_files.stores.remote.file_system", fail)
    with pytest.raises(ConfigurationError, match=r"Unable to load libjvm\), which needs Hadoop.*HADOOP_HOME") as told:
        renaming.sink().open()
    assert len(str(told.value).splitlines()) == 1


class NoOSError(Exception):
    """As client libraries have them."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EBUSY, "busy"), Retriable),
        (ConnectionResetError("gone"), Retriable),
        (TimeoutError("late"), Retriable),
        (OSError("503 Server Error"), Retriable),
        (PermissionError("no"), OperatorRequired),
        (OSError(errno.EIO, "input/output error"), OutcomeUnknown),
        (NoOSError("?"), OutcomeUnknown),
        (ValueError("?"), OutcomeUnknown),
    ],
    ids=repr,
)
def test_an_error_of_the_store_is_never_a_success_and_a_later_commit_completes(
    error: Exception, expected: type[TwoPhaseCommitError], renaming: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = renaming.pre_commit(batch_id=7)
    for call in ("mv", "info"):
        with monkeypatch.context() as patched:
            patched.setattr(type(renaming.fs), call, raising(error))
            with pytest.raises(TwoPhaseCommitError, match="batch 7") as raised:
                renaming.sink().commit(committable)
        assert type(raised.value) is expected
    renaming.sink().commit(committable)
    assert renaming.values() == ["a", "b"]


@pytest.mark.long
def test_a_sweep_of_a_store_that_is_busy_is_repeated(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pre_commit()
    [found] = memory.sink().recover()
    for call in ("ls", "rm_file"):
        monkeypatch.setattr(type(memory.fs), call, raising(OSError(errno.EBUSY, "busy")))
    with pytest.raises(Retriable):
        list(memory.sink().recover())
    with pytest.raises(Retriable):
        memory.sink().abort(found)
