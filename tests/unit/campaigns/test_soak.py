"""The soak's measure: what grows with the batches is told from what only warms up, or goes up and down."""

import pytest

from tests.campaigns.soak.slopes import slope

BATCHES = range(500, 20_500, 500)


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ([7.0 for _ in BATCHES], 0.0, 0.0),
        ([0.0 for _ in BATCHES], 0.0, 0.0),
        ([100 + n / 1000 for n in BATCHES], 0.08, 0.1),  # ten per 10 000 batches, of 112 on average
        ([100 - n / 1000 for n in BATCHES], -0.12, -0.1),
        ([50.0 if n < 4_000 else 100.0 for n in BATCHES], 0.0, 0.0),  # a warm-up
        ([33.0 + n / 500 % 32 for n in range(500, 500 * 32 * 4, 500)], -0.01, 0.01),  # as of a log that is pruned
    ],
)
def test_growth_is_told_from_a_warm_up_and_from_ups_and_downs(values: list[float], least: float, most: float) -> None:
    batches = [500 * (number + 1) for number in range(len(values))]
    assert least - 1e-9 <= slope(batches, values) <= most + 1e-9
