"""Under which name catalogs of lineage know a table."""

from tests.sinks.iceberg.conftest import Place
from twopc import Dataset


def test_a_table_is_known_by_its_location(place: Place) -> None:
    place.create()
    location = place.table().location()
    assert location.startswith("file:///")
    assert place.sink().datasets([]) == [Dataset("file", location.removeprefix("file://"))]
