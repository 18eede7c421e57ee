"""The verdict of the command line on each open transaction, and the rows of what recovery did."""

from tests.support.commit_log import CommitLog
from tests.support.memory_log import MemoryLog
from twopc import Committable, Round, TransactionalIdPool
from twopc.cli.recovery import Work
from twopc.cli.verdicts import Verdict, judge
from twopc.events import TransactionCommitted
from twopc.log.entries import Decision


def test_what_a_driver_writes_again_from_a_replay_copy_is_no_orphan() -> None:
    store = MemoryLog()
    CommitLog.open(store, "query")
    log = CommitLog.open(store, "query")
    pool = TransactionalIdPool("prefix", log.tail.log_id, "orders")
    decided, late = pool.allocate(Round(2, 0), 0).exact, pool.allocate(Round(1, 0), 0).exact
    loser = pool.allocate(Round(2, 0), 0, serial=1).exact  # an attempt of the decided batch that does not count
    log.decide(Decision(Round(2, 0), {"orders": (Committable(decided, {}, 1),)}))
    again = pool.reallocate(decided, Round(2, 0)).exact

    def verdicts() -> dict[str, Verdict]:
        open_ = [Committable(transaction_id, {}) for transaction_id in (again, late, loser)]
        return {row.committable.transaction_id: row.verdict for row in judge(log.tail, pool, open_)}

    assert verdicts() == {
        decided: Verdict.ENDED,
        again: Verdict.CURRENT,
        late: Verdict.UNDECIDED,
        loser: Verdict.UNDECIDED,
    }
    log.complete()
    assert verdicts() == dict.fromkeys((again, late, loser), Verdict.UNDECIDED)


def test_what_recovery_committed_is_shown_in_one_order_whichever_commit_ended_first() -> None:
    work = Work()
    for sink, transaction_id in ("orders", "b"), ("orders", "a"), ("archive", "c"):
        work.twopc_event(TransactionCommitted(sink, 1, Committable(transaction_id, {}, 3), True, "query"))
    work.sort()
    assert [(row["sink"], row["transaction_id"]) for row in work.committed] == [
        ("archive", "c"),
        ("orders", "a"),
        ("orders", "b"),
    ]
