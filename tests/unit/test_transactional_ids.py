"""The names of transactions."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twopc import Round
from twopc.errors import ConfigurationError
from twopc.transactional_ids import TransactionalIdPool, TransactionId
from twopc_kafka.leases import Lease, Use, lease

NAME = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)
PREFIX = st.lists(NAME, min_size=1, max_size=3).map(".".join)
POOL = st.builds(TransactionalIdPool, PREFIX, NAME, NAME.filter(lambda name: not name.isdecimal()))
COUNT = st.integers(0, 10**6)
ROUND = st.builds(Round, COUNT, COUNT)
ATTEMPT = st.tuples(ROUND, COUNT, COUNT)

POOL_OF_A = TransactionalIdPool("twopc", "log", "a")


def leased(pool: TransactionalIdPool, round: Round) -> str:
    return Lease(pool.scope, Use("0123456789abcdef", "", (round.incarnation, round.batch_id), False), None).name


def test_a_name_tells_its_place_and_its_attempt() -> None:
    pool = TransactionalIdPool("team.x", "log", "orders")
    assert pool.allocate(Round(11, 6), 5, 7).exact == "team.x.log.orders.11.6.5.7.0"
    assert pool.round_of("team.x.log.orders.11.6.5.7.0") == Round(11, 6)


def test_a_leased_name_tells_its_pool_and_its_batch_modulo_four() -> None:
    name = lease(POOL_OF_A.scope, (11, 6)).name
    assert re.fullmatch(r"twopc\.log\.a\.[0-9a-f]{16}\.2", name)
    assert [batch for batch in range(12) if POOL_OF_A.may_be_of(name, batch)] == [2, 6, 10]


@given(POOL, ATTEMPT)
def test_a_pool_owns_what_it_allocates(pool: TransactionalIdPool, attempt: tuple[Round, int, int]) -> None:
    name = pool.allocate(*attempt)
    assert pool.owns_exact(name.exact)
    assert pool.owns_leased(leased(pool, attempt[0]))
    assert (name.prefix, name.log_id, name.sink) == (pool.prefix, pool.log_id, pool.sink)
    assert (name.round, name.partition, name.serial) == attempt


@given(POOL, POOL, ATTEMPT)
def test_a_pool_owns_nothing_of_another(
    one: TransactionalIdPool, other: TransactionalIdPool, attempt: tuple[Round, int, int]
) -> None:
    if one != other:
        assert not one.owns_exact(other.allocate(*attempt).exact)
        assert not one.owns_leased(leased(other, attempt[0]))


@pytest.mark.parametrize(
    "other",
    [
        TransactionalIdPool("twopc", "log", "ab"),
        TransactionalIdPool("twopc", "log1", "a"),
        TransactionalIdPool("twopc1", "log", "a"),
        TransactionalIdPool("x.twopc", "log", "a"),
        TransactionalIdPool("twopc.log", "a", "b"),  # the scope of the first is a prefix of its scope
        TransactionalIdPool("twopc.log.a.1", "2", "b"),
        TransactionalIdPool("twopc.log.a", "1", "2-"),
        TransactionalIdPool("twopc", "a", "log"),
    ],
)
def test_sinks_and_logs_whose_names_are_prefixes_of_each_other_own_nothing_of_each_other(
    other: TransactionalIdPool,
) -> None:
    mine, theirs = POOL_OF_A.allocate(Round(1, 2), 3, 4), other.allocate(Round(1, 2), 3, 4)
    assert POOL_OF_A.owns_exact(mine.exact)
    assert other.owns_exact(theirs.exact)
    assert not POOL_OF_A.owns_exact(theirs.exact)
    assert not other.owns_exact(mine.exact)


@pytest.mark.parametrize(
    "look_alike",
    [
        "",
        "twopc.log.a",
        "twopc.log.a.",
        "twopc.log.a.1.2.3",
        "twopc.log.a.1.2.3.4.5.6",
        "twopc.log.a.1.2.3.4.",
        "twopc.log.a.1.2.3.4.x",
        "twopc.log.a.1.2.3.4.-5",
        "twopc.log.a.1.2.3.4. 5",
        "twopc.log.a.1.2.3.4.5\n",
        "twopc.log.a.1.2.3.4.\u0665",  # a digit five, of another script
        "xtwopc.log.a.1.2.3.4.5",
        "twopc_log.a.1.2.3.4.5",
        "TWOPC.log.a.1.2.3.4.5",
        "1.2.3.4.5",
    ],
)
def test_a_look_alike_is_not_owned(look_alike: str) -> None:
    assert not POOL_OF_A.owns_exact(look_alike)
    assert not POOL_OF_A.owns_leased(look_alike)


@pytest.mark.parametrize("bad", ["", ".", "a.b", "a b", "a/b", "a\n", "\u00e4", "a*", ".a", "a."])
def test_a_name_that_cannot_be_part_of_an_id_is_refused_and_named(bad: str) -> None:
    for what, log_id, sink in (("log id", bad, "a"), ("sink name", "log", bad)):
        with pytest.raises(ConfigurationError, match=f"{what} .* can't be part of a transactional id"):
            TransactionalIdPool("twopc", log_id, sink)


@pytest.mark.parametrize("bad", ["0", "17"])
def test_a_sink_named_by_a_number_is_refused_because_its_ids_would_have_two_readings(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="digits alone"):
        TransactionalIdPool("twopc", "log", bad)
    assert TransactionalIdPool("1", "2", "3rd").owns_exact("1.2.3rd.1.2.3.4.5")


@pytest.mark.parametrize("bad", ["", ".", "a..b", "a b", ".a", "a.", "a\n"])
def test_a_prefix_may_have_inner_dots_and_nothing_else(bad: str) -> None:
    assert TransactionalIdPool("team.x-1.y_2", "log", "a").scope == "team.x-1.y_2.log.a."
    with pytest.raises(ConfigurationError, match="transactional id prefix"):
        TransactionalIdPool(bad, "log", "a")


def test_two_attempts_of_one_round_never_share_a_name() -> None:
    names = [POOL_OF_A.allocate(Round(1, 1), partition=0, serial=serial) for serial in range(10_000)]
    assert len({name.exact for name in names}) == len(names)


def test_what_is_written_again_has_a_name_that_no_attempt_of_any_partition_has() -> None:
    attempts = [POOL_OF_A.allocate(Round(1, 1), 5, serial) for serial in range(100)]
    once = POOL_OF_A.reallocate(POOL_OF_A.allocate(Round(1, 1), 5, 7).exact, Round(1, 1))
    twice = POOL_OF_A.reallocate(once.exact, Round(1, 1))
    assert (once.exact, twice.exact) == ("twopc.log.a.1.1.5.7.1", "twopc.log.a.1.1.5.7.2")
    assert not {once.exact, twice.exact} & {name.exact for name in attempts}


def test_what_had_a_leased_name_is_written_again_by_a_lease_of_its_own() -> None:
    assert POOL_OF_A.reallocate(leased(POOL_OF_A, Round(1, 1)), Round(2, 1)).round == Round(2, 1)


def test_what_was_not_allocated_here_cannot_be_written_again() -> None:
    with pytest.raises(ValueError, match=r"twopc\.log\.b\.1\.1\.7\.1\.0"):
        POOL_OF_A.reallocate("twopc.log.b.1.1.7.1.0", Round(1, 1))


@given(ATTEMPT, ATTEMPT)
def test_two_attempts_never_share_an_exact_name(one: tuple[Round, int, int], other: tuple[Round, int, int]) -> None:
    same = POOL_OF_A.allocate(*one).exact == POOL_OF_A.allocate(*other).exact
    assert same == (one == other)


def test_a_round_is_not_the_sum_of_its_numbers() -> None:
    names = {POOL_OF_A.allocate(Round(i, 7 - i), 0).exact for i in range(4)}
    assert len(names) == 4


def test_the_pool_travels_to_a_participant() -> None:
    assert pickle.loads(pickle.dumps(POOL_OF_A)) == POOL_OF_A  # noqa: S301  # our own bytes
    assert isinstance(POOL_OF_A.allocate(Round(1, 1), 0), TransactionId)
