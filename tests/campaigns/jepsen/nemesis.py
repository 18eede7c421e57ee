"""The nemesis: faults, drawn by a seed. A seed repeats the faults and their order, but not the machine's timing.

A fault is a generator. It does something, yields how many seconds it waits, and undoes what it did. Each ends within
bounded time, and may overlap with others.
"""

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from tests.campaigns.jepsen import clocks
from tests.campaigns.jepsen.brokers import PARTITIONS, TRANSACTIONS, Cluster
from tests.campaigns.jepsen.network import (
    BROKERS,
    CLIENTS,
    DRIVERS,
    HOSTS,
    POSTGRES,
    WORKERS,
    Link,
    Network,
    between,
    one_way,
)
from tests.campaigns.jepsen.query import Query
from tests.support.full_disks import LACKS, Disk, Lack
from tests.support.kills import MOMENTS, Process, kill_each
from tests.support.postgres_server import PostgresServer
from twopc.events import TransactionCommitted, TransactionReplayed
from twopc.phases import Phase

Steps = Iterator[float]
T = TypeVar("T")

LONGEST_S = 20.0
OUTLASTS_TIMEOUT_S = 19.0
"""Longer than the transaction timeout of a query with replay copies."""

NO_ANSWER_S = 32.0
"""Longer than the PostgreSQL sink waits for an answer."""

STOP_TIMEOUT_S = 20.0
"""How long a broker may take to shut down in good order."""

CLOCK_STEPS_S = (-4200, -30, 30, 4200)
"""The large ones are more than the hour by which a record's timestamp may be ahead of the broker's clock."""

RATES = ("60kbit", "150kbit", "400kbit")


@dataclass(frozen=True)
class Fault:
    """What is struck, the steps, and the name of its kind."""

    what: str
    steps: Steps
    kind: str = ""


class Nemesis:
    """Draws faults from a shuffled deck, so that even a short campaign has many kinds."""

    def __init__(
        self,
        network: Network,
        cluster: Cluster,
        postgres: PostgresServer,
        queries: Sequence[Query],
        chance: random.Random,
        deck: Sequence[str],
    ) -> None:
        self._network, self._cluster, self._postgres = network, cluster, postgres
        self._queries, self._chance = queries, chance
        self._full_deck, self._deck = deck, list[str]()
        self._away = Counter[str]()  # servers, by how many faults keep them down
        self._filled = Counter[Path]()  # disks, by how many faults keep them full
        self.faults = Counter[str]()
        self.ended_by_themselves = Counter[str]()

    def supervise(self) -> None:
        """Start brokers that have ended by themselves, as an orchestrator does."""
        for name, broker in self._cluster.brokers.items():
            if not self._away[name] and not broker.is_running:
                self.ended_by_themselves[name] += 1
                broker.start()

    def draw(self) -> Fault:
        if not self._deck:
            self._deck = self._chance.sample(self._full_deck, len(self._full_deck))
        kind = self._deck.pop()
        self.faults[kind] += 1
        make: Callable[[], Fault] = getattr(self, f"_{kind}")
        return replace(make(), kind=kind)

    # Whom. --------------------------------------------------------------------------------------------------------

    def _broker(self) -> str:
        """Return a broker by its role: it leads a partition, coordinates transactions, or controls the cluster."""
        partition = self._chance.randrange(PARTITIONS)
        topic = self._query().settings.topic
        found = self._chance.choice(
            (
                lambda: self._cluster.leader(topic, partition),
                lambda: self._cluster.leader(TRANSACTIONS, partition),
                self._cluster.controller,
                lambda: None,
            )
        )()
        return found or self._chance.choice(BROKERS)

    def _query(self) -> Query:
        return self._chance.choice(self._queries)

    def _one_of_ours(self) -> Query:
        return self._chance.choice([query for query in self._queries if query.is_ours])

    def _some(self, every: Sequence[T]) -> list[T]:
        return self._chance.sample(every, self._chance.randint(1, len(every)))

    def _seconds(self, least: float, most: float) -> float:
        """Return a duration. Short ones are more frequent."""
        return self._chance.triangular(least, most, least)

    # The network. -------------------------------------------------------------------------------------------------

    def _cut(self, what: str, links: Collection[Link], least_s: float = 3, most_s: float = LONGEST_S) -> Fault:
        def steps() -> Steps:
            self._network.cut(links)
            yield self._seconds(least_s, most_s)
            self._network.heal(links)

        return Fault(f"cut {what}", steps())

    def _cut_in_a_direction(self, some: Sequence[str], others: Sequence[str]) -> Fault:
        """Cut both directions or one of them."""
        here, there = ", ".join(some), ", ".join(others)
        what, links = self._chance.choice(
            (
                (f"{here} and {there}", between(some, others)),
                (f"{here} to {there}", one_way(some, others)),
                (f"{there} to {here}", one_way(others, some)),
            )
        )
        return self._cut(what, links)

    def _isolated_broker(self) -> Fault:
        broker = self._broker()
        return self._cut(f"{broker} from all", between([broker], HOSTS))

    def _long_isolated_broker(self) -> Fault:
        broker = self._broker()
        return self._cut(f"{broker} from all for long", between([broker], HOSTS), 35, 45)

    def _broker_from_brokers(self) -> Fault:
        broker = self._broker()
        return self._cut_in_a_direction([broker], [other for other in BROKERS if other != broker])

    def _broker_from_clients(self) -> Fault:
        return self._cut_in_a_direction([self._broker()], CLIENTS)

    def _mute_or_deaf_broker(self) -> Fault:
        broker = self._broker()
        if self._chance.random() < 0.5:
            return self._cut(f"{broker} to all", one_way([broker], HOSTS))
        return self._cut(f"all to {broker}", one_way(HOSTS, [broker]))

    def _bridge(self) -> Fault:
        one, other = self._chance.sample(BROKERS, 2)
        return self._cut(f"{one} and {other}; the third reaches both", between([one], [other]))

    def _minority(self) -> Fault:
        here = [self._broker(), *self._some(CLIENTS)]
        there = [host for host in HOSTS if host not in here]
        return self._cut(f"{', '.join(here)} from all others", between(here, there))

    def _brokers_apart(self) -> Fault:
        return self._cut("all brokers from each other", one_way(BROKERS, BROKERS), 3, 12)

    def _drivers_from_brokers(self) -> Fault:
        return self._cut_in_a_direction(self._some(DRIVERS), BROKERS)

    def _driver_from_broker(self) -> Fault:
        return self._cut_in_a_direction([self._query().host], [self._broker()])

    def _workers_from_brokers(self) -> Fault:
        return self._cut_in_a_direction(self._some(WORKERS), BROKERS)

    def _worker_from_broker(self) -> Fault:
        return self._cut_in_a_direction([self._chance.choice(WORKERS)], [self._broker()])

    def _postgres_from_drivers(self) -> Fault:
        return self._cut_in_a_direction([POSTGRES], self._chance.choice(([self._query().host], DRIVERS)))

    def _postgres_from_workers(self) -> Fault:
        return self._cut_in_a_direction([POSTGRES], self._some(WORKERS))

    def _postgres_from_committing_driver(self) -> Fault:
        """A decided commit gets no answer. The driver is paused until the cut is there, as a commit takes milliseconds.
        The long cuts outlast its limit for an answer."""
        query = self._one_of_ours()
        host, least_s = query.host, self._chance.choice((3, NO_ANSWER_S))
        links = self._chance.choice((between([POSTGRES], [host]), one_way([POSTGRES], [host])))

        def steps() -> Steps:
            if driver := query.driver:
                query.pause(Phase.COMMITTING.value)
                yield from self._until_paused(driver)
                if query.withdraw(driver):
                    return  # it has not committed within that time
                yield from self._until_paused(driver)
                self._network.cut(links)
                driver.send_signal(signal.SIGCONT)
                yield self._seconds(least_s, least_s + 8)
                self._network.heal(links)

        return Fault(f"cut {host} and postgres as {query.name} begins to commit", steps())

    def _until_paused(self, process: Process) -> Steps:
        """Wait for at most 10 s until a process is paused or gone."""
        for _ in range(200):
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                    yield 0.05
                    continue
            return

    def _slow_host(self) -> Fault:
        host, rate = self._chance.choice((*BROKERS, *DRIVERS, *WORKERS, POSTGRES)), self._chance.choice(RATES)

        def steps() -> Steps:
            self._network.slow(host, rate)
            yield self._seconds(4, LONGEST_S)
            self._network.restore(host)

        return Fault(f"slow {host} ({rate})", steps())

    def _flapping_broker(self) -> Fault:
        broker = self._broker()
        links = between([broker], HOSTS)

        def steps() -> Steps:
            for _ in range(self._chance.randint(6, 13)):
                self._network.cut(links)
                yield self._seconds(0.1, 0.9)
                self._network.heal(links)
                yield self._seconds(0.1, 0.9)

        return Fault(f"flap {broker}", steps())

    # Brokers. -----------------------------------------------------------------------------------------------------

    def _down(self, brokers: Collection[str], longest_s: float) -> Steps:
        """Kill brokers, and start them later, if no other fault keeps them down."""
        for name in brokers:
            self._away[name] += 1
            self._cluster.brokers[name].kill()
        yield self._seconds(0, longest_s)
        for name in brokers:
            self._back(name)
        yield self._seconds(0, 6)  # for the start of its Java

    def _back(self, broker: str) -> None:
        self._away[broker] -= 1
        if not self._away[broker]:
            self._cluster.brokers[broker].start()

    def _killed_broker(self) -> Fault:
        broker = self._broker()
        return Fault(f"kill {broker}", self._down([broker], 12))

    def _two_killed_brokers(self) -> Fault:
        brokers = self._chance.sample(BROKERS, 2)
        return Fault(f"kill {' and '.join(brokers)}", self._down(brokers, 8))

    def _all_killed_brokers(self) -> Fault:
        return Fault("kill all brokers", self._down(BROKERS, 4))

    def _rolling_restart(self) -> Fault:
        brokers = self._chance.sample(BROKERS, len(BROKERS))

        def steps() -> Steps:
            for name in brokers:
                self._away[name] += 1
                self._cluster.brokers[name].send(signal.SIGTERM)
                waited_s = 0.0
                while self._cluster.brokers[name].is_running and waited_s < STOP_TIMEOUT_S:
                    waited_s += 0.2
                    yield 0.2
                self._cluster.brokers[name].kill()
                self._back(name)
                yield self._seconds(5, 10)

        return Fault(f"restart {', '.join(brokers)}", steps())

    def _paused(self, brokers: Sequence[str], longest_s: float) -> Fault:
        def steps() -> Steps:
            for name in brokers:
                self._cluster.brokers[name].send(signal.SIGSTOP)
            yield self._seconds(2, longest_s)
            for name in brokers:
                self._cluster.brokers[name].send(signal.SIGCONT)

        return Fault(f"pause {', '.join(brokers)}", steps())

    def _paused_broker(self) -> Fault:
        return self._paused([self._broker()], LONGEST_S)

    def _paused_brokers(self) -> Fault:
        return self._paused(self._chance.sample(BROKERS, self._chance.choice((2, 3))), 12)

    def _lowered_version(self) -> Fault:
        def steps() -> Steps:
            self._cluster.set_transaction_version(1)
            yield self._seconds(3, LONGEST_S)
            self._cluster.set_transaction_version(2)

        return Fault("transaction.version 1", steps())

    # Drivers. -----------------------------------------------------------------------------------------------------

    def _killed_driver(self) -> Fault:
        query = self._query()

        def steps() -> Steps:
            query.kill_driver()
            yield self._seconds(0, 2)

        return Fault(f"kill the driver of {query.name}", steps())

    def _driver_killed_at_a_moment(self) -> Fault:
        query, moment = self._query(), self._chance.choice((*MOMENTS, TransactionReplayed.__name__))

        def steps() -> Steps:
            if moment in (Phase.RECOVERING.value, TransactionReplayed.__name__):  # a driver that starts comes to these
                query.kill_driver()
                yield from self._until_another(query, query.driver)
            query.die(moment)
            yield 4

        return Fault(f"kill the driver of {query.name} at {moment}", steps())

    def _driver_that_stays_away(self) -> Fault:
        """A decided batch waits for longer than the brokers keep a transaction with a timeout."""
        query = self._query()
        moment = self._chance.choice((Phase.COMMITTING.value, TransactionCommitted.__name__))

        def steps() -> Steps:
            query.away_s = self._seconds(OUTLASTS_TIMEOUT_S, OUTLASTS_TIMEOUT_S + 4)
            query.die(moment)
            yield from self._until_another(query, query.driver)

        return Fault(f"kill the driver of {query.name} at {moment}, away for long", steps())

    def _until_another(self, query: Query, driver: Process | None) -> Steps:
        """Wait for at most 30 s until another driver has started."""
        for _ in range(150):
            if query.driver and query.driver is not driver:
                return
            yield 0.2

    def _paused_driver(self) -> Fault:
        query = self._query()

        def steps() -> Steps:
            if driver := query.driver:
                driver.send_signal(signal.SIGSTOP)
                yield self._seconds(1, LONGEST_S)
                driver.send_signal(signal.SIGCONT)

        return Fault(f"pause the driver of {query.name}", steps())

    def _driver_replaced_while_paused(self) -> Fault:
        query = self._one_of_ours()

        def steps() -> Steps:
            yield self._seconds(0, 1)  # at any moment of a batch
            if driver := query.driver:
                driver.send_signal(signal.SIGSTOP)
                query.succeed()
                yield self._seconds(2, 12)
                driver.send_signal(signal.SIGCONT)
                yield 3

        return Fault(f"pause the driver of {query.name}, replaced meanwhile", steps())

    def _driver_replaced_while_cut_off(self) -> Fault:
        query = self._one_of_ours()
        host = query.host
        links = self._chance.choice((between([host], BROKERS), one_way([host], BROKERS), one_way(BROKERS, [host])))

        def steps() -> Steps:
            self._network.cut(links)
            yield self._seconds(0, 4)
            query.succeed()
            yield self._seconds(3, 14)
            self._network.heal(links)

        return Fault(f"cut {host} and brokers, driver of {query.name} replaced meanwhile", steps())

    def _several_drivers(self) -> Fault:
        query = self._one_of_ours()

        def steps() -> Steps:
            for _ in range(self._chance.randint(1, 6)):
                query.succeed()
                yield self._seconds(0.2, 3)

        return Fault(f"several drivers of {query.name}", steps())

    def _checkpoint_that_falls_back(self) -> Fault:
        query = self._one_of_ours()
        loss = self._chance.choice(query.losses)

        def steps() -> Steps:
            query.kill_drivers()
            query.checkpoint.lose(loss)
            yield from self._until_another(query, query.driver)

        return Fault(f"kill the drivers of {query.name}, whose checkpoint loses: {loss.value}", steps())

    def _checkpoint_that_falls_back_beside_a_driver(self) -> Fault:
        """Another driver begins before the batch of the one that runs. Loops only: Spark's checkpoint loses files in a
        power cut, which no driver survives."""
        query = self._chance.choice([query for query in self._queries if query.is_loop])
        loss = self._chance.choice(query.losses)

        def steps() -> Steps:
            query.checkpoint.lose(loss)
            query.succeed()
            yield self._seconds(1, 6)

        return Fault(f"another driver of {query.name}, whose checkpoint loses: {loss.value}", steps())

    # Workers and their tasks. ---------------------------------------------------------------------------------------

    def _killed_tasks(self) -> Fault:
        query = self._query()

        def steps() -> Steps:
            for _ in range(self._chance.randint(1, 4)):
                kill_each(self._some_tasks(query))
                yield self._seconds(0.2, 1.5)

        return Fault(f"kill tasks of {query.name}", steps())

    def _killed_workers(self) -> Fault:
        query, hosts = self._query(), self._some(WORKERS)

        def steps() -> Steps:
            for host in hosts:
                query.kill_worker(host)
            yield self._seconds(0, 2)

        return Fault(f"kill {', '.join(hosts)} of {query.name}", steps())

    def _paused_tasks(self) -> Fault:
        query = self._query()

        def steps() -> Steps:
            tasks = self._some_tasks(query)
            for task in tasks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    task.suspend()
            yield self._seconds(2, LONGEST_S)
            for task in tasks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    task.resume()

        return Fault(f"pause tasks of {query.name}", steps())

    def _some_tasks(self, query: Query) -> list[psutil.Process]:
        tasks = query.tasks()
        return self._chance.sample(tasks, self._chance.randint(min(1, len(tasks)), len(tasks)))

    # Disks. ---------------------------------------------------------------------------------------------------------

    def _full_broker_disk(self) -> Fault:
        broker = self._broker()
        disk = self._cluster.brokers[broker].disk
        assert disk is not None  # else the kind is left out
        return self._full([disk], "bytes", f"fill the disk of {broker}")

    def _full_log_disk(self) -> Fault:
        query, lack = self._one_of_ours(), self._chance.choice(LACKS)
        disks = self._chance.choice((query.disks[:1], self._some(query.disks)))
        names = ", ".join(disk.folder.name for disk in disks)
        return self._full(disks, lack, f"fill disks of {query.name} (no {lack}): {names}")

    def _full(self, disks: Sequence[Disk], lack: Lack, what: str) -> Fault:
        def steps() -> Steps:
            for disk in disks:
                self._filled[disk.folder] += 1
                disk.fill(lack, names_left=self._chance.randrange(3))
            yield self._seconds(2, LONGEST_S)
            for disk in disks:
                self._filled[disk.folder] -= 1
                if not self._filled[disk.folder]:
                    disk.free()

        return Fault(what, steps())

    # Clocks. --------------------------------------------------------------------------------------------------------

    def _stepped_clock_of_broker(self) -> Fault:
        return self._stepped(self._broker())

    def _stepped_clock_of_client(self) -> Fault:
        return self._stepped(self._chance.choice((*DRIVERS, *WORKERS)))

    def _stepped(self, host: str) -> Fault:
        """Step a host's clock by no more than a transaction timeout without replay copies: Kafka goes by the clock of
        the coordinator, and would roll back what is decided."""
        most_s = min(query.kind.longest_step_s for query in self._queries)
        seconds = self._chance.choice([step_s for step_s in CLOCK_STEPS_S if abs(step_s) <= most_s])

        def steps() -> Steps:
            assert self._network.clocks is not None  # else the kind is left out
            self._network.clocks.step(host, seconds)
            yield self._seconds(3, LONGEST_S)
            self._network.clocks.step(host, -seconds)
            if host in BROKERS and seconds == max(CLOCK_STEPS_S):
                # Kafka's Raft client waits by the wall clock: a wait that began meanwhile would last for 70 minutes.
                yield from self._down([host], 0)

        return Fault(f"step the clock of {host} by {seconds:+} s", steps())

    # PostgreSQL. ----------------------------------------------------------------------------------------------------

    def _killed_postgres(self) -> Fault:
        def steps() -> Steps:
            self._away["PostgreSQL"] += 1
            self._postgres.kill()
            yield self._seconds(0, 8)
            self._away["PostgreSQL"] -= 1
            if not self._away["PostgreSQL"]:
                self._postgres.start()

        return Fault("kill PostgreSQL", steps())


KINDS = {
    "isolated_broker": 2,
    "long_isolated_broker": 1,
    "broker_from_brokers": 2,
    "broker_from_clients": 1,
    "mute_or_deaf_broker": 2,
    "bridge": 1,
    "minority": 2,
    "brokers_apart": 1,
    "drivers_from_brokers": 2,
    "driver_from_broker": 1,
    "workers_from_brokers": 1,
    "worker_from_broker": 1,
    "postgres_from_drivers": 1,
    "postgres_from_workers": 1,
    "postgres_from_committing_driver": 2,
    "slow_host": 2,
    "flapping_broker": 1,
    "killed_broker": 2,
    "two_killed_brokers": 1,
    "all_killed_brokers": 1,
    "rolling_restart": 1,
    "lowered_version": 1,
    "paused_broker": 2,
    "paused_brokers": 1,
    "killed_driver": 1,
    "driver_killed_at_a_moment": 4,
    "driver_that_stays_away": 1,
    "paused_driver": 1,
    "driver_replaced_while_paused": 2,
    "driver_replaced_while_cut_off": 2,
    "several_drivers": 1,
    "checkpoint_that_falls_back": 2,
    "checkpoint_that_falls_back_beside_a_driver": 1,
    "killed_tasks": 1,
    "killed_workers": 1,
    "paused_tasks": 1,
    "stepped_clock_of_broker": 2,
    "stepped_clock_of_client": 1,
    "full_broker_disk": 2,
    "full_log_disk": 2,
    "killed_postgres": 1,
}
"""The kinds of faults, and how often each is in the deck."""


NEED_DISKS = ("full_broker_disk", "full_log_disk")
NEED_CLOCKS = ("stepped_clock_of_broker", "stepped_clock_of_client")


def left_out(queries: Sequence[Query], no_disks: str | None) -> dict[str, str]:
    """Return the kinds that can't be had here, and why."""
    found = dict.fromkeys(NEED_DISKS, no_disks) if no_disks else {}
    if no_clocks := clocks.why_not():
        found |= dict.fromkeys(NEED_CLOCKS, no_clocks)
    if not any(query.is_loop for query in queries):
        found["checkpoint_that_falls_back_beside_a_driver"] = "it strikes queries that are loops, and there is none"
    return found


def deck(kinds: Collection[str], alone: bool) -> list[str]:
    """Return these kinds, each as often as it is drawn: once if faults are to strike alone."""
    return [kind for kind in kinds for _ in range(1 if alone else KINDS[kind])]
