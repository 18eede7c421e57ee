"""The checks of a query, from what its driver passes to Spark. They need no session."""

from pathlib import Path

import pytest

import twopc
from twopc.errors import ConfigurationError
from twopc.spark import doctor, foreach_batch


def test_all_sinks_and_the_log_of_foreach_batch_are_checked_and_stay_as_they_were(tmp_path: Path) -> None:
    archive, bad = (twopc.create_sink("files", {"path": str(tmp_path / name)}) for name in ("archive", "bad"))
    found = doctor(foreach_batch({"archive": archive}, log=tmp_path / "log", bad_records=bad))
    found.raise_for_failed()
    assert {each.sink for each in found.results} == {None, "archive", "bad_records"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="has no transactional ids yet"):
        _ = archive.transactional_ids


@pytest.mark.parametrize(
    ("places", "log"),
    [
        ({"checkpointLocation": "{folder}/checkpoint"}, True),
        ({"CHECKPOINTLOCATION": "file:{folder}/checkpoint"}, True),  # as Spark takes names, and Hadoop spells places
        ({"log": "{folder}/log", "batch_id": 7}, True),
        ({}, False),  # of a pipeline, whose checkpoint Spark chooses
    ],
)
def test_the_options_of_a_writer_are_checked_with_the_log_where_it_is_known(
    places: dict[str, object], log: bool, tmp_path: Path
) -> None:
    given = {name: value.format(folder=tmp_path) if isinstance(value, str) else value for name, value in places.items()}
    found = doctor({"sink": "files", "path": str(tmp_path / "archive"), **given})
    found.raise_for_failed()
    assert {each.sink for each in found.results} == ({None, "sink"} if log else {"sink"})


def test_a_missing_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'sink'"):
        doctor({"path": "/nowhere"})
