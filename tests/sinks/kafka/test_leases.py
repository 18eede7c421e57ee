"""Names on loan: nobody has a name of another attempt that may still begin, however late."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from twopc.errors import PoolExhausted
from twopc_kafka import leases
from twopc_kafka.leases import Use, lease, next_use

POOL = "twopc.log.a."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of its own for each test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leases, "_searched", {})
    leases._warn.cache_clear()
    yield tmp_path
    leases._warn.cache_clear()


def used(round: tuple[int, int], pool: str = POOL) -> str:
    """Lease a name, have all answered that is sent by it, and release it."""
    leased = lease(pool, round)
    leased.answered()
    leased.release()
    return leased.name.rpartition(".")[0]


# The rules. -------------------------------------------------------------------------------------------------------

LAST = Use("t", "boot", (2, 5), is_answered=True)


@pytest.mark.parametrize(
    ("last", "boot", "round", "token"),
    [
        (LAST, "boot", (2, 6), "the same"),
        (LAST, "boot", (3, 0), "the same"),
        (LAST, "boot", (2, 5), "none"),  # another attempt of the same round
        (LAST, "boot", (2, 4), "none"),  # a late one
        (LAST, "boot", (1, 9), "none"),
        (None, "boot", (2, 6), "another"),
        # What was sent may still arrive.
        (Use("t", "boot", (2, 5), is_answered=False), "boot", (2, 6), "another"),
        (Use("t", "boot", (9, 9), is_answered=False), "boot", (2, 6), "another"),
        (LAST, "another boot", (2, 6), "another"),
    ],
)
def test_what_an_attempt_makes_of_a_name(last: Use | None, boot: str, round: tuple[int, int], token: str) -> None:
    use = next_use(last, boot, round)
    if use is None:
        assert token == "none"  # noqa: S105  # no password
    else:
        assert token == ("the same" if use.token == "t" else "another")  # noqa: S105  # the same
        assert (use.boot, use.round, use.is_answered) == (boot, round, False)


# On a machine. ----------------------------------------------------------------------------------------------------


def test_a_name_is_used_again_by_the_next_round_and_not_by_the_same() -> None:
    first = [used((1, 0)) for _ in range(3)]
    assert len(set(first)) == 3
    assert [used((1, 1)) for _ in range(3)] == first
    assert [used((2, 1)) for _ in range(4)][:3] == first


def test_a_lease_tells_whether_an_earlier_attempt_had_its_name() -> None:
    first = lease(POOL, (1, 0))
    assert not first.was_used
    first.release()  # not answered
    second = lease(POOL, (1, 1))
    assert not second.was_used
    second.answered()
    second.release()
    assert lease(POOL, (1, 2)).was_used


def test_as_many_names_are_enough_for_any_number_of_rounds(folder: Path) -> None:
    names = {used((1, batch)) for batch in range(100) for _ in range(4)}
    assert len(names) == 4
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 4


def test_a_name_that_is_to_be_new_is_none_that_anybody_has_used() -> None:
    assert lease(POOL, (1, 1), is_new=True).name.rpartition(".")[0] not in {used((1, 0)) for _ in range(3)}


def test_a_process_looks_at_each_file_once_a_round_however_many_attempts_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    open_slot = leases.open_slot

    def counted(pool: str, number: int) -> leases.Slot | None:
        opened.append(number)
        return open_slot(pool, number)

    monkeypatch.setattr(leases, "open_slot", counted)
    for batch_id in range(2):
        held = [lease(POOL, (1, batch_id)) for _ in range(20)]
        for each in held:
            each.answered()
            each.release()
    assert opened == [*range(20), *range(20)]


def test_nobody_gets_a_name_that_an_attempt_holds() -> None:
    held = lease(POOL, (1, 0))
    held.answered()
    assert used((1, 1)) != held.name.rpartition(".")[0]


def test_what_a_late_attempt_used_is_for_the_next_round() -> None:
    used((1, 4))
    late = used((1, 0))
    assert late in [used((1, 5)) for _ in range(2)]


def test_pools_share_no_name() -> None:
    names = {used((1, 0), f"twopc.log.{sink}.") for sink in "abc"}
    assert len(names) == 3


def test_a_file_that_is_no_use_gets_a_new_name(folder: Path) -> None:
    first = used((1, 0))
    [file] = [path for path in folder.rglob("*") if path.is_file()]
    for spoilt in (b"", b"{", b"[]", b'{"token": 1}', b"\xff", file.read_bytes() + b"}"):
        file.write_bytes(spoilt)
        assert used((1, 1)) != first


def test_a_removed_folder_is_made_anew_with_new_names(folder: Path) -> None:
    first = used((1, 0))
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert used((1, 1)) != first


def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "NAMES_AT_MOST", 2)
    used((1, 0))
    used((1, 0))
    with pytest.raises(PoolExhausted, match=r"batch 0, incarnation 1, or newer .* 2 transactional ids of 'twopc\.log"):
        lease(POOL, (1, 0))


def test_a_machine_without_a_folder_uses_no_name_twice_and_says_so_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / f"twopc-{os.getuid()}").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert len({used((1, batch)) for batch in range(5)}) == 5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "TMPDIR" in caplog.text


def test_a_folder_that_another_user_made_is_not_used(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / f"twopc-{os.getuid()}").symlink_to(elsewhere)
    with caplog.at_level(logging.WARNING):
        used((1, 0))
    assert "belongs to another user" in caplog.text
    assert list(elsewhere.iterdir()) == []


@pytest.mark.variants
@pytest.mark.crash
@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_holds_its_name_while_it_lives_though_it_is_stopped_and_not_after_it_is_killed(
    folder: Path, ends_by: signal.Signals
) -> None:
    program = (
        f"import tempfile; tempfile.tempdir = {str(folder)!r}\n"
        "from twopc_kafka.leases import lease\n"
        f"held = lease({POOL!r}, (1, 0)); held.answered(); print(held.name, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        theirs = process.stdout.readline().decode().strip().rpartition(".")[0]
        try:
            process.send_signal(ends_by)
            if ends_by is signal.SIGKILL:
                process.wait()
            assert (used((1, 1)) == theirs) is (ends_by is signal.SIGKILL)
        finally:
            process.kill()
