"""Exit codes of the command ``twopc`` and of drivers: one per action that the caller must take."""

from __future__ import annotations

from enum import IntEnum

from twopc.errors import CorruptLog, Fenced, InDoubt, OperatorRequired, Refused, Retriable, RoundAborted


class ExitCode(IntEnum):
    """The exit codes, documented in docs/cli.md. Programs rely on them."""

    FINE = 0
    IN_DOUBT = 1
    USAGE = 2
    REFUSED = 3
    OPERATOR_REQUIRED = 4
    FENCED = 5
    NO_ANSWER = 6
    OTHER = 70
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def stays_stopped(self) -> bool:
        """Whether a supervisor must leave the driver stopped, because a restart would fail again or fence a newer
        driver. After any other code, even an unlisted one, it may restart the driver."""
        return self in (ExitCode.REFUSED, ExitCode.OPERATOR_REQUIRED, ExitCode.FENCED)


_CODES: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
    ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
    ((OperatorRequired,), ExitCode.OPERATOR_REQUIRED),
    ((Fenced,), ExitCode.FENCED),
    ((Retriable, InDoubt, RoundAborted, OSError), ExitCode.NO_ANSWER),
    ((Refused,), ExitCode.REFUSED),
)


def code_of(kind: type[BaseException]) -> ExitCode:
    """Return the code of an error of this class."""
    return next((code for kinds, code in _CODES if issubclass(kind, kinds)), ExitCode.OTHER)


def exit_code(error: BaseException, opened: bool) -> ExitCode:
    """Return the code of an error that ends a command. ``opened``: whether the command has opened, and so changed, the
    log."""
    if isinstance(error, CorruptLog) and not opened:
        return ExitCode.REFUSED
    return code_of(type(error))
