"""The ways in which Spark writes, each with its cases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.campaigns.spark.case import Case, Strike
from tests.campaigns.spark.job import CONNECT, CONNECT_FOREACH_BATCH, FORMAT_BATCH, FORMAT_STREAM, PIPELINE


@dataclass(frozen=True)
class Way:
    """Cases, and the environment in which they run.

    Attributes:
        spark, python: the versions of a separate environment; if both are empty, the campaign's own environment.
        on_cluster: whether to run on a master with two workers. Otherwise everything runs in the driver.
        is_packed: whether the executors get Python packages only from an archive of an environment.
    """

    cases: Sequence[Case]
    spark: str = ""
    python: str = ""
    on_cluster: bool = False
    is_packed: bool = False


def _kills(*moments: tuple[str, int]) -> Sequence[Sequence[Strike]]:
    """Return starts that each end at a step of a batch with a kill of the driver and all its processes."""
    return [[("kill", step, batch)] for step, batch in moments]


_FOREACH_BATCH = _kills(
    ("pre_commit", 0),  # tasks write
    ("seal", 1),  # all have pre-committed
    ("deciding", 2),  # before the append
    ("commit", 3),  # decided, but nothing is committed
    ("recovering", 3),
    ("open", 3),  # has fenced the previous driver, but not yet read the target system
    ("committed", 4),  # during the commits
    ("complete", 4),
    ("sweeping", 5),
)
_FORMAT = _kills(
    ("pre_commit", 0),
    ("seal", 1),
    ("commit", 2),
    ("open", 2),
    ("committed", 3),
    ("complete", 4),
    ("close", 5),  # the log is closed, but Spark has not recorded the batch
)
_PIPELINE = _kills(
    ("pre_commit", 1),
    ("seal", 2),
    ("deciding", 3),
    ("commit", 4),
    ("committed", 5),
    ("sweeping", 6),  # the batch without input that the watermark causes
)
_RECOMPUTED = _kills(
    ("commit", 1),  # decided: the next start finds nothing of it in Kafka, and computes it again
    ("pre_commit", 1),
    ("seal", 1),
    ("commit", 1),  # under the amended decision, which is lost, too
    ("committed", 1),  # a part is visible, and the rest is lost
    ("complete", 1),
    ("commit", 3),
    ("committed", 3),
    ("sweeping", 4),
)
_LOSSES: Sequence[Sequence[Strike]] = [
    [("lose", "pre_commit", 0), ("kill", "commit", 1)],
    [("hold", "pre_commit", 2), ("kill", "sweeping", 3)],
    [("lose", "pre_commit", 4), ("kill", "seal", 5)],
]
_CONNECT: Sequence[Sequence[Strike]] = [
    [("orphan", "pre_commit", 0), ("kill", "seal", 1)],  # the next client's query replaces the first one's
    [("kill", "commit", 2)],
    [("kill", "committed", 3)],
    [("orphan", "pre_commit", 4), ("kill", "close", 5)],
]
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.eventLog.enabled": "true",  # shows which attempts are speculative
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
_STATE, _ADAPTIVE = "spark.sql.streaming.stateStore", "spark.sql.adaptive"
_DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}
_ROCKSDB = {f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_MAIN = Case("enriched", _kills(("pre_commit", 0), ("commit", 2), ("sweeping", 4)))
_MAIN_BY_FORMAT = Case("deduplication", _kills(("seal", 1), ("commit", 2)), FORMAT_STREAM)

_SPARKS = ("4.0.3", "4.1.2", "4.2.0", "4.2.1")
"""One recent release per minor version whose Kafka source is widely published; and 4.2.1, with the source of 4.2.0."""

_WITHOUT_SOURCE = "4.3.0"
"""A version for which no Kafka source is published, so its cases read files."""

WAYS: Mapping[str, Way] = {
    "foreach_batch": Way([Case("enriched", _FOREACH_BATCH)]),
    "recompute": Way([Case("lost", _RECOMPUTED)]),
    "bad_records": Way([Case("bad_records", _FOREACH_BATCH)]),
    "format_stream": Way([Case("deduplication", _FORMAT, FORMAT_STREAM)]),
    "format_batch": Way([Case("enriched", _FORMAT, FORMAT_BATCH)]),
    "connect": Way([Case("deduplication", _CONNECT, CONNECT)]),
    "connect_foreach_batch": Way(
        [
            Case(
                "enriched",
                [[("orphan", "pre_commit", 0), ("kill", "seal", 1)], *_FOREACH_BATCH[2:]],
                CONNECT_FOREACH_BATCH,
            )
        ]
    ),
    "pipelines": Way(
        [
            Case("deduplication", _FORMAT, PIPELINE),
            Case("enriched", _kills(("seal", 1), ("commit", 2)), PIPELINE),  # from Kafka
        ]
    ),
    "cluster": Way(
        [
            Case("bad_records", _LOSSES, settings=_SPECULATION),
            Case("aggregation", _kills(("commit", 3)), settings=_DYNAMIC_ALLOCATION),
        ],
        on_cluster=True,
    ),
    "packed": Way([Case("enriched", _kills(("pre_commit", 0), ("commit", 2)))], on_cluster=True, is_packed=True),
    **{name: Way([Case(name, _PIPELINE)]) for name in ("aggregation", "join", "deduplication", "windowed_counts")},
    "totals": Way([Case("totals", _PIPELINE[:-1], settings=_ROCKSDB)]),
    "checkpoint_v2": Way(
        [Case("aggregation", _PIPELINE, settings={**_ROCKSDB, f"{_STATE}.checkpointFormatVersion": "2"})]
    ),
    "adaptive": Way(
        [
            Case(
                "shuffled",
                _FOREACH_BATCH,
                settings={f"{_ADAPTIVE}.enabled": "true", f"{_ADAPTIVE}.streaming.stateless.enabled": "true"},
            )
        ]
    ),
    **{f"spark-{version}": Way([_MAIN, _MAIN_BY_FORMAT], spark=version) for version in _SPARKS},
    f"spark-{_WITHOUT_SOURCE}": Way(
        [Case("aggregation", _kills(("pre_commit", 1), ("commit", 4), ("sweeping", 6))), _MAIN_BY_FORMAT],
        spark=_WITHOUT_SOURCE,
    ),
    **{
        f"python-{version}": Way([_MAIN], spark="4.2.0", python=version) for version in ("3.10", "3.11", "3.12", "3.13")
    },
}
