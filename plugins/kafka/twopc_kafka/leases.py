"""Leased names: each task attempt leases a name on its own machine, and no other attempt can use the name meanwhile.

Kafka remembers every name for days, so names are reused. Beginning a transaction under a name rolls back the
transaction that is open under it. An attempt may be late by any amount of time: it waited for a broker, its machine was
suspended, or its rival won long ago. No clock shows when it is dead, but the kernel of its machine does: a name is a
file with a lock. The attempt holds the lock while it may still begin, and the lock ends with its process.

``next_use`` applies these rules to the attempt that holds a name's lock:

- The name was last used in an older round: take it. Rounds follow each other, so that round is settled. A transaction
  that is still open under the name can never be decided; the sink decides whether to use the name (``Lease.was_used``).
- The name was last used in this round or a newer one: leave it, because its transaction is or may be decided. A late
  attempt therefore skips every name of a newer round, and leases an unused one.
- The last user died or failed before everything it sent was answered, or the machine has booted since: give the file
  another name. Requests sent under the old name may still arrive.

So a machine needs four names (``BATCH_SLOTS``) per attempt of its largest round, and four more per attempt that died,
failed or did not use its leased name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import secrets
import socket
import stat
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from twopc.errors import PoolExhausted
from twopc.transactional_ids import BATCH_SLOTS

logger = logging.getLogger(__name__)

NAMES_AT_MOST = 10_000
"""The most names of one pool on one machine: more than any machine runs attempts in one round."""

RoundNumbers: TypeAlias = "tuple[int, int]"
"""Incarnation and batch id of a round. Later rounds compare greater."""


@dataclass(frozen=True, slots=True)
class Use:
    """The last use of a name.

    Attributes:
        token: makes the name unique on all machines.
        boot: the boot of the machine that used it.
        round: the round of the attempt that used it.
        is_answered: whether the target system has answered every request of the attempt.
    """

    token: str
    boot: str
    round: RoundNumbers
    is_answered: bool


def next_use(last: Use | None, boot: str, round: RoundNumbers) -> Use | None:
    """Return how an attempt of ``round`` may use a name whose lock it holds. ``last``: the name's last use, if any.

    Returns:
        None if the name belongs to this round or a newer one.
    """
    another = Use(secrets.token_hex(8), boot, round, is_answered=False)
    if last is None or last.boot != boot or not last.is_answered:
        return another
    if last.round >= round:
        return None
    return replace(last, round=round, is_answered=False)


class Lease:
    """A name that no other attempt on any machine can use until the lease is released or this process is dead.

    Attributes:
        was_used: whether an earlier attempt used the name, and may have left a transaction open under it.
    """

    def __init__(self, pool: str, use: Use, slot: Slot | None, was_used: bool = False) -> None:
        self.name = f"{pool}{use.token}.{use.round[1] % BATCH_SLOTS}"
        self.was_used = was_used
        self._use = use
        self._slot = slot

    def answered(self) -> None:
        """Note that the target system has answered every request under this name, so none can arrive later."""
        if self._slot is not None:
            with contextlib.suppress(OSError):  # costs only the name
                self._slot.write(_to_json(replace(self._use, is_answered=True)))

    def release(self) -> None:
        """Give the name back, once its transaction is pre-committed or rolled back. This lease must begin no other
        transaction."""
        if self._slot is not None:
            self._slot.close()
            self._slot = None


def lease(pool: str, round: RoundNumbers, is_new: bool = False) -> Lease:
    """Lease a name of ``pool`` for one attempt of ``round``. With ``is_new``, lease a name that was never used before.

    If this machine has no folder to lock files in, every lease takes a new name, which Kafka then keeps for days.

    Raises:
        PoolExhausted: attempts of this round or newer ones hold all names.
    """
    searched, first = _searched.get(pool, (round, 0))
    try:
        for number in range(first if searched == round else 0, NAMES_AT_MOST):
            slot = open_slot(pool, number)
            if slot is None:
                continue
            last = None if is_new else _from_json(slot.read())
            use = next_use(last, _boot(), round)
            if use is not None:
                slot.write(_to_json(use))
                _searched[pool] = round, number + 1
                return Lease(pool, use, slot, was_used=last is not None and last.token == use.token)
            slot.close()
    except (OSError, ImportError, AttributeError) as error:  # Windows has neither such locks nor user ids
        _warn(f"{type(error).__name__}: {error}")
        return Lease(pool, Use(secrets.token_hex(8), _boot(), round, is_answered=False), None)
    raise PoolExhausted(
        f"attempts of batch {round[1]}, incarnation {round[0]}, or newer ones hold all {NAMES_AT_MOST} transactional"
        f" ids of {pool!r} on {socket.gethostname()}. Nothing was written. Run fewer tasks here, and start again."
    )


_searched: dict[str, tuple[RoundNumbers, int]] = {}
"""Pool → its last round in this process, and how many files the attempts of that round have tried. Later attempts of
the round skip these files, which is always safe. Otherwise the number of tries would grow with the square of the number
of tasks."""


def open_slot(pool: str, number: int) -> Slot | None:
    """Lock and return file ``number`` of a pool, or return None if another process or attempt holds it.

    Raises:
        OSError: the folder can't be created, or belongs to another user.
        ImportError, AttributeError: this system has no file locks, or no user ids.
    """
    folder = _folder(pool)
    try:
        return Slot.locked(folder / str(number))
    except FileNotFoundError:
        _make(folder)
        return Slot.locked(folder / str(number))


class Slot:
    """A locked file of the pool."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "r+b", buffering=0)  # closed with the object at the latest

    @classmethod
    def locked(cls, path: Path) -> Slot | None:
        import fcntl

        file = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        _require_own(path, os.fstat(file._file.fileno()))
        try:
            fcntl.flock(file._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def read(self) -> bytes:
        return os.pread(self._file.fileno(), 4096, 0)

    def write(self, data: bytes) -> None:
        """Replace the content. Raises OSError."""
        os.pwrite(self._file.fileno(), data, 0)  # a crash may leave invalid JSON, which costs the name
        os.ftruncate(self._file.fileno(), len(data))

    def close(self) -> None:
        """Unlock the file. The end of the process does the same."""
        self._file.close()


def _folder(pool: str) -> Path:
    """Return this user's folder for the pool on this machine. Containers that share a disk have separate folders."""
    digest = hashlib.sha256(pool.encode()).hexdigest()[:32]  # a pool's name may be too long for a folder's
    return Path(tempfile.gettempdir()) / f"twopc-{os.getuid()}" / socket.gethostname() / digest


def _make(folder: Path) -> None:
    own = folder.parent.parent
    own.mkdir(mode=0o700, exist_ok=True)
    _require_own(own, own.lstat())
    folder.mkdir(parents=True, exist_ok=True)


def _require_own(path: Path, status: os.stat_result) -> None:
    """Refuse another user's files: that user could lock the names, or hand one out twice."""
    if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode):
        raise PermissionError(f"{path} is a link, or belongs to another user")


@functools.cache
def _boot() -> str:
    """Return the id of this machine's current boot. Any boot changes the id, so a name file on a cloned disk, or on a
    disk that lost writes, does not match it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache  # warns once per process and reason
def _warn(reason: str) -> None:
    logger.warning(
        "transactional ids can't be used again on this machine (%s), so each transaction has a new one, which its"
        " target keeps for days. Give the process a temporary folder (TMPDIR) that it may write to.",
        reason,
    )


def _to_json(use: Use) -> bytes:
    return json.dumps(asdict(use)).encode()


def _from_json(data: bytes) -> Use | None:
    """Return the use, or None if it is missing or unreadable."""
    try:
        value = json.loads(data)
        incarnation, batch_id = value["round"]
        return Use(
            str(value["token"]), str(value["boot"]), (int(incarnation), int(batch_id)), value["is_answered"] is True
        )
    except (ValueError, KeyError, TypeError):
        return None
