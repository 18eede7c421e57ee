"""A writer of one transaction, as a separate process that kills itself before or after its pre-commit."""

import json
import sys
from typing import Any

import pyarrow as pa

import twopc
from tests.support.kills import kill_this_process, run_killed
from twopc import Committable, Participant, Round
from twopc.testing.query import answered

VALUES = [str(n) for n in range(100)]
BEFORE, AFTER = "before pre-commit", "after pre-commit"


def killed_writer(backend: str, options: dict[str, Any], when: str = AFTER, prefix: str = "") -> Committable | None:
    """Have a process write ``VALUES`` and kill itself. Return the transaction if the process has pre-committed it."""
    job = json.dumps({"backend": backend, "options": options, "when": when, "prefix": prefix})
    printed = run_killed("-m", "tests.support.killed_writer", job)
    return Committable.from_json(json.loads(printed)) if printed else None


def main() -> None:
    job = json.loads(sys.argv[1])
    sink = twopc.create_sink(job["backend"], job["options"])
    if job["prefix"]:
        sink.prefix = job["prefix"]
    sink.bind("orders", "log")
    answered(60.0, sink.open)  # the target system may have just started
    participant = Participant({"orders": sink}, Round(1, 7), partition=3)
    participant.write("orders", pa.record_batch({"value": VALUES}))
    if job["when"] == AFTER:
        print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)  # noqa: T201  # the result
    elif producer := getattr(getattr(participant._transactions["orders"], "writer", None), "_producer", None):
        producer.flush()  # so that the broker has received records
    kill_this_process()


if __name__ == "__main__":
    main()
