"""Rolls back open Kafka transactions, as Kafka does after a timeout."""

from twopc_kafka.client.control import Control


def roll_back(control: Control, prefix: str) -> None:
    """Have Kafka roll back the open transactions whose ids begin with ``prefix`` and a dot."""
    for name, state in control.describe(control.list_ongoing(f"{prefix}.")).items():
        control.end(name, state.producer_id, state.producer_epoch, commit=False, version=control.end_txn_version)
