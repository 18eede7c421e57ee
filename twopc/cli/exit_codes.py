"""Exit codes: one for each thing that the caller must do differently."""

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
    DEFECT = 70
    INTERRUPTED = 130


_CODES: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
    ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
    ((OperatorRequired,), ExitCode.OPERATOR_REQUIRED),
    ((Fenced,), ExitCode.FENCED),
    ((Retriable, InDoubt, RoundAborted, OSError), ExitCode.NO_ANSWER),
    ((Refused,), ExitCode.REFUSED),
)


def exit_code(error: BaseException, opened: bool) -> ExitCode:
    """Return the code of ``error``. ``opened``: whether the log was opened, so that something has changed."""
    if isinstance(error, CorruptLog) and not opened:
        return ExitCode.REFUSED
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.DEFECT)
