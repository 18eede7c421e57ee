"""Keyed changes to a table. The final rows depend on the order of batches, and a batch applied again after later ones
would bring deleted rows back."""

from enum import Enum


class Change(Enum):
    """What a batch does to a key."""

    WRITE = "write"
    LEAVE = "leave"
    DELETE = "delete"


_CYCLE = (Change.WRITE, Change.LEAVE, Change.WRITE, Change.DELETE)


def change(batch_id: int, key: int) -> Change:
    """Return what a batch does to a key. Keys start at different points of the cycle, so some deletes find no row."""
    return _CYCLE[(batch_id + key) % len(_CYCLE)]


def state_of(batches: int, keys: int) -> dict[int, int]:
    """Return the state after ``batches`` batches: key → the batch that wrote it last."""
    found = dict[int, int]()
    for batch_id in range(batches):
        for key in range(keys):
            of_key = change(batch_id, key)
            if of_key is Change.WRITE:
                found[key] = batch_id
            elif of_key is Change.DELETE:
                found.pop(key, None)
    return found
