"""The strikes: kills, pauses and full disks. A seed repeats the strikes, but not the machine's timing."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psutil

from tests.campaigns.storm.availability import Availability
from tests.campaigns.storm.driver import Driver, wake
from tests.campaigns.storm.query import REPLAYED, Settings, wish
from tests.campaigns.storm.readers import Readers
from tests.support.full_disks import LACKS, Disk
from tests.support.kills import MOMENTS, kill_all_of
from tests.support.rest_catalog import RestCatalogServer
from tests.support.spark_checkpoint import Checkpoint, Loss
from twopc.phases import Phase
from twopc_kafka_broker import KafkaBroker

Deed = Callable[[], bool]


class Chaos:
    """Strikes, and later undoes what can be undone."""

    def __init__(
        self,
        settings: Settings,
        driver: Driver,
        broker: KafkaBroker,
        catalog: RestCatalogServer | None,
        disks: Sequence[Disk],
        checkpoint: Checkpoint,
        availability: Availability,
        readers: Readers,
        *,
        chance: random.Random,
    ) -> None:
        self._checkpoint, self._readers = checkpoint, readers
        self._driver, self._broker, self._catalog, self._disks = driver, broker, catalog, disks
        self._availability, self._chance = availability, chance
        self._wish = wish(settings)
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._rolls_back = not settings.without_timeout
        self._decided_at_last_death: int | None = None
        self._down = set[str]()
        self._sleeps_until = 0.0
        self._later: list[tuple[threading.Timer, Callable[[], None]]] = []
        self._deck: list[Deed] = []
        self.kills, self.pauses, self.full_disks = Counter[str](), Counter[str](), Counter[str]()

    def strike(self) -> str:
        """Strike once or several times at once. Return what was struck."""
        before = self._done()
        for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
            self._strike_once()
        return ", ".join(self._done() - before)

    def _done(self) -> Counter[str]:
        done = {"kill": self.kills, "pause": self.pauses, "fill": self.full_disks, "lose": self._checkpoint.lost}
        return Counter({f"{verb} {name}": times for verb, counts in done.items() for name, times in counts.items()})

    def _strike_once(self) -> None:
        """Do the first possible strike of a shuffled deck. Even a short storm thus has some of each kind."""
        if not self._deck:
            self._deck = [deed for deed, often in self._deeds().items() for _ in range(often)]
            self._chance.shuffle(self._deck)
        for place, deed in enumerate(self._deck):
            if deed():
                del self._deck[place]
                return
        # None is possible. For example, a worker whose daemon was killed is below no driver, so it can't be found.
        self._deck.clear()

    def _deeds(self) -> dict[Deed, int]:
        return {
            self._kill_python_workers: 24,
            self._kill_python_daemons: 2,
            self._kill_executors: 5,
            self._kill_driver: 2,
            self._kill_driver_at_a_moment: 4,
            self._outlast_the_timeout: 1,
            self._kill_broker: 1,
            self._kill_catalog: 3 if self._catalog else 0,
            self._pause_python_worker: 2,
            self._pause_executor: 1,
            self._pause_driver: 1,
            self._replace_sleeping_driver: 1,
            self._lose_of_checkpoint: 3,
            self._pause_broker: 1,
            self._kill_reader: 6,
            self._fill_a_disk: 3 if self._disks else 0,
        }

    def calm(self) -> None:
        """Undo now everything that would be undone later."""
        for timer, _ in self._later:
            timer.cancel()
        for timer, undo in self._later:
            timer.join()
            undo()
        self._wish.unlink(missing_ok=True)

    def _undo_after(self, seconds: float, undo: Callable[[], None]) -> None:
        """Call ``undo`` later; ``calm`` may call it once more."""
        timer = threading.Timer(seconds, undo)
        timer.start()
        self._later.append((timer, undo))

    # Executors and their Python workers. --------------------------------------------------------------------------

    def _kill_python_workers(self) -> bool:
        return self._kill_some("python worker", self._driver.python_workers())

    def _kill_python_daemons(self) -> bool:
        """Kill daemons, from which executors fork their workers."""
        return self._kill_some("python daemon", self._driver.python_daemons())

    def _kill_executors(self) -> bool:
        return self._kill_some("executor", self._driver.executors())

    def _kill_some(self, name: str, victims: Sequence[psutil.Process]) -> bool:
        """Kill one, several or all of the victims."""
        for victim in self._chance.sample(victims, self._chance.randint(min(1, len(victims)), len(victims))):
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
                self.kills[name] += 1
        return bool(victims)

    def _pause_python_worker(self) -> bool:
        return self._pause_one("python worker", self._driver.python_workers(), 20)

    def _pause_executor(self) -> bool:
        return self._pause_one("executor", self._driver.executors(), 25)

    def _pause_one(self, name: str, victims: Sequence[psutil.Process], longest_s: float) -> bool:
        return bool(victims) and self._pause(name, self._chance.choice(victims), longest_s)

    def _pause(self, name: str, process: psutil.Process, longest_s: float) -> bool:
        """Suspend a process, and resume it later, when another may have taken its place."""

        def resume() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

        try:
            process.suspend()
        except psutil.NoSuchProcess:
            return False
        self._undo_after(self._chance.uniform(1, longest_s), resume)
        self.pauses[name] += 1
        return True

    # The driver. --------------------------------------------------------------------------------------------------

    def _is_a_fresh_driver(self) -> bool:
        """Return whether the driver has decided a batch since the last death. If not, a kill tests only its start."""
        decided = self._availability.decided
        if not self._driver.is_alive or decided == self._decided_at_last_death:
            return False
        self._decided_at_last_death = decided
        return True

    def _kill_driver(self) -> bool:
        if not self._is_a_fresh_driver():
            return False
        self._driver.kill()
        self.kills["driver"] += 1
        return True

    def _kill_driver_at_a_moment(self) -> bool:
        """Make the driver kill only itself. The processes that it started notice by themselves."""
        if not self._is_a_fresh_driver():
            return False
        moment = self._chance.choice(MOMENTS)
        if moment == Phase.RECOVERING.value:
            self._driver.kill()
            self.kills["driver"] += 1
        return self._dies(moment)

    def _outlast_the_timeout(self) -> bool:
        """Leave a decided batch uncommitted for longer than Kafka waits. Sometimes also kill during the replay."""
        if not self._is_a_fresh_driver() or not self._dies(Phase.COMMITTING.value):
            return False
        self._driver.down_until = time.monotonic() + self._timeout_s + 3
        if self._rolls_back and self._chance.random() < 0.5:
            self._dies(REPLAYED, patience_s=self._timeout_s + 30)
        return True

    def _dies(self, moment: str, patience_s: float = 20) -> bool:
        """Make the driver, or the next one, kill itself at a moment. Return whether it did."""
        self._wish.write_text(moment, encoding="utf-8")
        deadline = time.monotonic() + patience_s
        while self._wish.exists() and time.monotonic() < deadline:
            self._driver.supervise()
            time.sleep(0.02)
        if self._wish.exists():
            self._wish.unlink(missing_ok=True)
            return False
        self.kills[f"driver at {moment}"] += 1
        return True

    def _pause_driver(self) -> bool:
        if not self._driver.is_alive:
            return False
        return self._pause("driver", psutil.Process(self._driver.process.pid), 5)

    def _replace_sleeping_driver(self) -> bool:
        """Suspend the driver. It resumes while a new one runs, and must be fenced."""
        if not self._is_a_fresh_driver():
            return False
        sleeper = self._driver.fall_asleep()
        asleep_s = self._chance.uniform(8, 20)
        self._undo_after(asleep_s, lambda: wake(sleeper))
        self._undo_after(asleep_s + 10, lambda: kill_all_of(sleeper))
        self._sleeps_until = time.monotonic() + asleep_s + 11
        self.pauses["driver, replaced meanwhile"] += 1
        return True

    def _lose_of_checkpoint(self) -> bool:
        """Simulate a power cut of the driver and its disk. Requires that no other driver writes to the disk."""
        if time.monotonic() < self._sleeps_until or not self._is_a_fresh_driver():
            return False
        self._driver.kill()
        self.kills["driver"] += 1
        self._checkpoint.lose(self._chance.choice(tuple(Loss)))
        return True

    # The servers and the disks. ------------------------------------------------------------------------------------

    def _kill_broker(self) -> bool:
        return self._kill_server("broker", self._broker)

    def _kill_catalog(self) -> bool:
        """Kill the server of the Iceberg catalog. It keeps its state on a disk."""
        return self._catalog is not None and self._kill_server("catalog", self._catalog)

    def _kill_server(self, name: str, server: KafkaBroker | RestCatalogServer) -> bool:
        """Kill a server that is up, and start it soon."""
        if name in self._down:
            return False

        def start() -> None:
            if name in self._down:
                server.start()
                self._down.discard(name)

        self._down.add(name)
        server.kill()
        self._undo_after(self._chance.uniform(0, 3), start)
        self.kills[name] += 1
        return True

    def _pause_broker(self) -> bool:
        pid = None if "broker" in self._down else self._broker.pid
        return pid is not None and self._pause("broker", psutil.Process(pid), 8)

    def _kill_reader(self) -> bool:
        """Kill a reader of whole batches. It is started again soon."""
        language = self._readers.kill_one(self._chance)
        if language is not None:
            self.kills[f"reader in {language}"] += 1
        return language is not None

    def _fill_a_disk(self) -> bool:
        free = [disk for disk in self._disks if not disk.is_full]
        if not free:
            return False
        disk, lack = self._chance.choice(free), self._chance.choice(LACKS)
        disk.fill(lack, names_left=self._chance.randrange(3))
        self._undo_after(self._chance.uniform(1, 8), disk.free)
        self.full_disks[f"{disk.folder.name}, no {lack}"] += 1
        return True
