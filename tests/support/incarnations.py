"""The newest incarnation of a coordinator, whose log and sweep only tests look at."""

from twopc import Coordinator
from twopc.effects import LogView, perform
from twopc.sweep import sweep


def log_of(coordinator: Coordinator) -> LogView:
    return coordinator._performer.life.log


def swept_by(coordinator: Coordinator) -> None:
    """Have a coordinator sweep, whatever it is doing."""
    perform(sweep(coordinator._performer.life, recovered=False), coordinator._performer.do)
