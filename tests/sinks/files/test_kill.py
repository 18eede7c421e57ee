"""A writer is killed, and another process settles what it left."""

import pytest

from tests.sinks.files.conftest import Place
from tests.support.killed_writer import AFTER, BEFORE, killed_writer
from twopc import Committable

pytestmark = [pytest.mark.crash, pytest.mark.long]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def killed(place: Place, when: str) -> Committable | None:
    options = {"path": place.url, "storage_options": place.storage_options, "format": "json"}
    return killed_writer("files", options, when)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_what_a_killed_writer_left_undecided_is_found_and_removed(when: str, place: Place) -> None:
    killed(place, when)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert (list(sink.recover()), place.files()) == ([], [])
