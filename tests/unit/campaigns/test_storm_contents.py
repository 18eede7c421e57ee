"""The lines of a broker's log that the storm counts."""

import pytest

from tests.campaigns.storm.contents import SKIPPED


@pytest.mark.parametrize("kind", ["Set", "HashSet"])
def test_partitions_whose_marker_was_left_out_are_found_in_the_brokers_log(kind: str) -> None:
    line = (
        f"Couldn't find leader endpoint for partitions {kind}(target-0, target-2) while trying to send transaction"
        " markers for storm, these partitions are likely deleted already and hence can be skipped"
    )
    assert SKIPPED.findall(line) == ["target-0, target-2"]
