"""The fastest store of a commit log, for tests that append hundreds of entries."""


class MemoryLog:
    """A log store in a dictionary. fsspec's memory store would scan the logs of all tests for every listing."""

    url = "memory"

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.notice = b""

    def slots(self) -> list[int]:
        return sorted(self.entries)

    def read(self, slot: int) -> bytes:
        try:
            return self.entries[slot]
        except KeyError:
            raise FileNotFoundError(slot) from None

    def put_if_absent(self, slot: int, data: bytes) -> None:
        if slot in self.entries:
            raise FileExistsError(slot)
        self.entries[slot] = data

    def delete(self, slot: int) -> None:
        self.entries.pop(slot, None)

    def post(self, data: bytes) -> None:
        self.notice = data

    def posted(self) -> bytes:
        return self.notice
