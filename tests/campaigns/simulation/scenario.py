"""The setting of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

from twopc import transactional_ids

REAL_SLOTS = transactional_ids.BATCH_SLOTS


@dataclass(frozen=True, slots=True)
class Scenario:
    """The setting that a schedule disturbs. Scenario and schedule determine a run.

    Attributes:
        sinks: one letter per sink: ``k`` for Kafka, ``f`` for files, ``t`` for a table that commits whole batches,
            ``d`` for a keyed table in a database, ``p`` for progress in Kafka, which commits last.
        log: ``object store`` or ``disk``.
        batches: the batches of the first run. Each later run adds one, and so does the last, undisturbed restart.
        partitions: the number of partitions, for successive incarnations in turn. A repeated batch may be partitioned
            differently (SPARK-28650).
        entries_kept: how many entries the log keeps when it is pruned.
        end_txn_version: 5 if Kafka raises the epoch at each end of a transaction, 4 if not.
        stage: whether participants write replay copies.
        recompute: whether lost records are computed again.
        backlog: whether the log starts with two decided batches, both uncommitted.
        orphans: whether the log starts with an open, undecided round.
        late_begin: whether an undecided round has requested a begin for each Kafka sink and died before the answer. The
            request arrives at a ``PREEMPT``, or at the end.
        machines: the number of machines. Drivers run on the first, and so do replays; tasks run on the others if there
            are any.
        slots: the number of batches after which a name recurs on its machine. With 1, names are less distinct than in
            reality.
        runs: how often the query is started. Each start after the first adds one batch.
        rests: whether drivers have a timer that calls ``rest`` after each batch, failed ones included, and end without
            a clean stop.
        fails: see ``spark_model.Failing``.
        syncs_checkpoint: whether the checkpoint survives a power cut. Spark does not sync its checkpoint: without this,
            a power cut removes the newest batch, or the two newest if names survive.
        joint: whether tables are committed together first.
        stage_retries_count_on: whether the attempts of a restarted Spark stage get new serial numbers, as
            ``twopc.spark`` assigns them. Leased names don't depend on it.
    """

    sinks: str = "kf"
    log: str = "object store"
    batches: int = 1
    partitions: tuple[int, ...] = (2,)
    rows_a_batch: int = 3
    entries_kept: int = 32
    end_txn_version: int = 5
    stage: bool = False
    recompute: bool = False
    backlog: bool = False
    orphans: bool = False
    stage_retries_count_on: bool = True
    late_begin: bool = False
    machines: int = 1
    slots: int = REAL_SLOTS
    runs: int = 1
    rests: bool = False
    syncs_checkpoint: bool = True
    joint: bool = False
    fails: str = ""

    @property
    def partitions_are_the_same(self) -> bool:
        """Whether each incarnation partitions a batch alike."""
        return len(set(self.partitions)) == 1
