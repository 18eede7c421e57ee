"""One case: a query whose driver is killed repeatedly. Then the query runs to its end, and its output is compared."""

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import confluent_kafka

from tests.campaigns.spark import refusing
from tests.campaigns.spark.contents import Contents, compare
from tests.campaigns.spark.job import FOREACH_BATCH, FORMAT_BATCH, UNPACKED, Job
from tests.campaigns.spark.plans import PLANS, batches
from tests.support.environments import Environment
from tests.support.kills import bound, kill_all_of
from tests.support.postgres_server import PostgresServer
from twopc_kafka_broker import KafkaBroker

DRIVER_AT_MOST_S = 240
"""The longest run of a driver. On an idle machine it takes 10 s."""

FAULT_OF_SPARK_4_1 = 'NullPointerException: Cannot invoke "scala.collection.IterableOps.map'
"""SPARK-55271: the Kafka source fails the query when it reports on a batch that was repeated after a start. The batch
is done, and the next start continues after it."""

Strike = tuple[str, str, int]
"""The kind of strike, its step and its batch; see ``twopc_faulty``. At most one strike per step and driver."""


@dataclass(frozen=True)
class Case:
    """A query, with the strikes against each start of its driver. The last start is undisturbed."""

    plan: str
    starts: Sequence[Sequence[Strike]]
    api: str = FOREACH_BATCH
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a case. ``told`` lists the failures."""

    kills: int
    lost: int
    duplicates: int
    leftovers: int
    told: Sequence[str]
    spark: str = ""
    python: str = ""


@dataclass(frozen=True)
class Bench:
    """The servers, folder and environment that all cases share."""

    folder: Path
    broker: KafkaBroker
    postgres: PostgresServer
    expected: Mapping[str, Contents]
    environment: Environment
    master: str = "local[2]"
    archive: str = ""
    backends: str = str(Path("tests/spark/backends").resolve())

    def run(self, case: Case, started: Callable[[], None]) -> Outcome:
        """Strike the query as its case specifies, let it finish, and compare. Call ``started`` after each start."""
        job = self._prepared(case)
        told: list[str] = []
        kills = 0
        for number, strikes in enumerate([*case.starts, ()]):
            # What is computed again must have the partitions that it had.
            parallelism = 2 if PLANS[case.plan].is_lost else 2 + number % 2
            ended = self._start(replace(job, strikes=strikes, parallelism=parallelism))
            missed = [strike for strike in strikes if (job.faults / strike[1]).exists()]
            told += [f"was not struck by {strike}" for strike in missed]
            wanted = -signal.SIGKILL if any(strike[0] == "kill" for strike in strikes) else 0
            if ended == wanted:
                kills += sum(strike[0] != "hold" for strike in strikes if strike not in missed)
            else:
                told.append(f"start {number} ended with {ended} instead of {wanted}")
            started()
        if job.outlived.exists():
            told.append("no other attempt replaced one that was held")
        if "spark.speculation" in case.settings and not _has_speculated(job):
            told.append("no speculative attempt has won")
        found = compare(job, self.expected[case.plan])
        told += [f"{count} {what}" for what, count in asdict(found).items() if count]
        noted = Path(job.folder) / "versions.json"
        versions = json.loads(noted.read_text()) if noted.exists() else {}
        if told:
            told.append(f"its files are in {job.folder}")
        else:
            shutil.rmtree(job.folder)
        return Outcome(kills, **asdict(found), told=told, **versions)

    def _prepared(self, case: Case) -> Job:
        """Create the input, topics and folder of a case."""
        name = f"{case.api}-{case.plan}-{uuid.uuid4().hex[:8]}"
        folder = self.folder / name
        folder.mkdir(parents=True)
        self.broker.create_topic(name, partitions=2)
        records = sum(len(batch) for batch in batches())
        if PLANS[case.plan].source == "kafka" and case.api != FORMAT_BATCH:
            self.broker.create_topic(f"{name}-source", partitions=2)
            self._feed_topic(f"{name}-source")
        else:
            feed_folder(folder / "source")
        job = Job(
            api=case.api,
            plan=case.plan,
            folder=str(folder),
            servers=self.broker.bootstrap_servers,
            source=f"{name}-source",
            target=name,
            records=records,
            jars=self.environment.jars,
            master=self.master,
            classes=str(self.folder / "classes.jsa"),
            backends=self.backends,
            archive=self.archive,
            conninfo=self.postgres.conninfo,
            settings=dict(case.settings),
        )
        return refusing.created(job) if PLANS[case.plan].has_bad else job

    def _feed_topic(self, topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        for number, record in enumerate(record for batch in batches() for record in batch):
            producer.produce(topic, json.dumps(record), partition=number % 2)
        if producer.flush(30):
            raise RuntimeError(f"the source {topic} could not be filled")

    def _start(self, job: Job) -> int | str:
        """Run a driver to its end, and once more if Spark's own fault ended it. Return its exit code or state."""
        log = Path(job.folder) / "driver.log"
        before = log.stat().st_size if log.exists() else 0
        ended = self._run(job, log)
        return self._run(job, log) if ended == 1 and FAULT_OF_SPARK_4_1 in log.read_text()[before:] else ended

    def _run(self, job: Job, log: Path) -> int | str:
        python = f"./{UNPACKED}/bin/python" if job.archive else self.environment.python
        with log.open("ab") as output:
            driver = subprocess.Popen(
                bound(self.environment.python, "-m", "tests.campaigns.spark.driver", json.dumps(asdict(job))),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": job.backends},
                start_new_session=True,
            )
        try:
            return driver.wait(DRIVER_AT_MOST_S)
        except subprocess.TimeoutExpired:
            return f"still running after {DRIVER_AT_MOST_S} s"
        finally:
            kill_all_of(driver)


def _has_speculated(job: Job) -> bool:
    """Return whether a speculative attempt's vote counted."""
    ends = (line for log in job.events.iterdir() for line in log.read_text().splitlines() if "TaskEnd" in line)
    return any('"Speculative":true' in end and '{"Reason":"Success"}' in end for end in ends)


def feed_folder(folder: Path) -> None:
    """Write one file per batch."""
    folder.mkdir()
    for number, batch in enumerate(batches()):
        file = folder / f"{number:03d}.json"
        file.write_text("".join(json.dumps(record) + "\n" for record in batch))
        os.utime(file, (number, number))  # Spark takes the oldest first
