"""Access to the log and the sweep of a coordinator's current incarnation, for tests."""

from twopc import Coordinator
from twopc.effects import LogView, perform
from twopc.sweep import sweep


def log_of(coordinator: Coordinator) -> LogView:
    return coordinator._performer.life.log


def swept_by(coordinator: Coordinator) -> None:
    """Have a coordinator sweep, whatever its state."""
    perform(sweep(coordinator._performer.life, recovered=False), coordinator._performer.do)
