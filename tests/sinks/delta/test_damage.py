"""What is read back may be cut off, emptied or garbled. The file is named, and the advice in the message works."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sinks.delta.conftest import Place
from twopc import Round
from twopc.errors import ConfigurationError, LogMismatch, OperatorRequired
from twopc_delta import DeltaSink
from twopc_delta.log_files import LogFiles
from twopc_delta.storage import Storage

DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "garbled": lambda path: path.write_bytes(bytes(byte ^ 0xA5 for byte in path.read_bytes())),
    "of another kind": lambda path: path.write_bytes(b"[1]"),
}


@pytest.fixture(params=DAMAGE.values(), ids=[*DAMAGE])
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    found: Callable[[Path], object] = request.param
    return found


def with_a_checkpoint(place: Place) -> DeltaSink:
    sink = place.sink()
    for batch_id in range(3):
        sink.commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id), sink=sink)])
    place.table().create_checkpoint()
    return sink


def removed_as_told(place: Place, error: Exception) -> list[str]:
    told = re.search(r"Remove (.*): the log has all", str(error))
    assert told, error
    names = told[1].split(" and ")
    for name in names:
        (place.log / name).unlink()
    return names


@pytest.mark.variants
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_damaged_checkpoint_is_named_and_the_table_is_read_without_it(
    place: Place, damage: Callable[[Path], object], is_decided: bool
) -> None:
    """It was repeated for ever as no answer. A power cut leaves an empty one, where its writer did not sync it."""
    sink = with_a_checkpoint(place)
    decided = place.pre_commit(["3"], Round(1, 3), sink=sink)
    damage(place.log / f"{3:020d}.checkpoint.parquet")
    later = place.bound()
    with pytest.raises(OperatorRequired if is_decided else ConfigurationError, match="can't be read") as raised:
        later.commit_batch(3, [decided]) if is_decided else later.open()
    assert removed_as_told(place, raised.value) == [f"{3:020d}.checkpoint.parquet", "_last_checkpoint"]
    later.commit_batch(3, [decided])
    assert place.values() == [*"0123"]


def test_a_damaged_checkpoint_that_alone_has_older_entries_is_not_to_be_removed(
    place: Place, damage: Callable[[Path], object]
) -> None:
    with_a_checkpoint(place)
    place.entry_path(0).unlink()
    damage(place.log / f"{3:020d}.checkpoint.parquet")
    with pytest.raises(ConfigurationError, match=rf"{3:020d}.checkpoint.parquet: .* Put the files back from a copy"):
        place.sink()


def test_a_note_of_a_checkpoint_that_is_not_there_is_named(place: Place) -> None:
    with_a_checkpoint(place)
    hint = place.log / "_last_checkpoint"
    hint.write_text(json.dumps({**json.loads(hint.read_bytes()), "version": 13}))
    with pytest.raises(ConfigurationError, match="it names version 13") as raised:
        place.sink()
    assert removed_as_told(place, raised.value) == ["_last_checkpoint"]
    assert len(place.values()) == 3
    place.sink()


def test_an_undecided_transaction_with_a_damaged_note_is_ended(
    place: Place, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """It stopped every start. Nothing is decided by the note, and VACUUM removes files that no version has."""
    vote = place.vote(["a"])
    [note] = place.folder.glob("_twopc/*.json")
    damage(note)
    [found] = place.sink().recover()
    place.sink().abort(found)
    assert (place.notes(), list(place.sink().recover())) == ([], [])
    assert f"{place.path}/_twopc/{vote.transaction_id}.json is damaged" in caplog.text
    assert "VACUUM" in caplog.text


@pytest.mark.variants
@pytest.mark.parametrize("content", [b'{"table":"t","batch":"0","version":1,"entry":"e"}', b"{}", b"[]", b"null", b""])
def test_a_receipt_with_other_content_is_named(place: Place, content: bytes) -> None:
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    place.receipt.write_bytes(content)
    with pytest.raises(LogMismatch, match=r"\.receipt is damaged"):
        place.pre_commit(["b"], Round(1, 1))
    place.receipt.unlink()
    place.sink().commit_batch(1, [place.pre_commit(["b"], Round(1, 1), partition=1)])
    assert place.values() == ["a", "b"]


def test_of_a_checkpoint_the_footer_alone_is_read(place: Place) -> None:
    """It describes as many files as the table has, which are not to be read to name a damaged one."""
    with_a_checkpoint(place)
    path = place.log / f"{3:020d}.checkpoint.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"x" * 400 + whole[404:])
    assert LogFiles(Storage.at(str(place.folder), {})).damaged_checkpoint() == ({}, True)
