"""Spark Structured Streaming on top of the two-phase-commit coordinator."""

from twopc.foreign import refuse_foreign_files
from twopc.spark.bad_records import BadRecords
from twopc.spark.data_source.source import TwoPhaseCommitDataSource
from twopc.spark.debezium import debezium
from twopc.spark.doctor import doctor
from twopc.spark.exiting import exit_code, exiting, until_stopped
from twopc.spark.foreach_batch import ForeachBatch, foreach_batch
from twopc.spark.forwarding import EventForwarder, forward_events
from twopc.spark.output import Output
from twopc.spark.stopping import stop

__all__ = [
    "BadRecords",
    "EventForwarder",
    "ForeachBatch",
    "Output",
    "TwoPhaseCommitDataSource",
    "debezium",
    "doctor",
    "exit_code",
    "exiting",
    "foreach_batch",
    "forward_events",
    "stop",
    "until_stopped",
]

refuse_foreign_files()  # checked again here: the foreign package may have replaced twopc/__init__.py
