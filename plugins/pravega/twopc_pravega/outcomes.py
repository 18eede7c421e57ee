"""The meaning of Pravega's errors. No I/O."""

from __future__ import annotations

from typing import TypeAlias

import grpc

from twopc.errors import ConfigurationError, OperatorRequired, Retriable, RoundAborted, TwoPhaseCommitError
from twopc.stores.errors import is_untrusted
from twopc_pravega.segments import Command, SegmentError

PravegaError: TypeAlias = "grpc.RpcError | SegmentError | OSError"

ERRORS = (grpc.RpcError, SegmentError, OSError)
"""Every exception that these clients raise."""

DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

TEMPORARY = {
    grpc.StatusCode.UNAVAILABLE: "the controller is away, or starts",
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the controller is full",
    grpc.StatusCode.ABORTED: "two requests at a time",
    grpc.StatusCode.ALREADY_EXISTS: "another request created it",
    grpc.StatusCode.CANCELLED: "the connection ended",
    grpc.StatusCode.FAILED_PRECONDITION: "the controller's store was changed meanwhile",
    grpc.StatusCode.INTERNAL: "the controller's store is away",
    grpc.StatusCode.UNKNOWN: "a failure that the controller has no status for, such as a lock that it did not get",
}
"""Temporary statuses → what the controller means (``getStatusFromException`` of its ``ControllerServiceImpl``)."""

_STOPPING = (Command.OPERATION_UNSUPPORTED, Command.INVALID_EVENT_NUMBER)
"""The answers by which a segment store refuses a request for good: repeating the request brings the same answer."""

_RIGHTS = "Check 'username' and 'password', and grant this user the rights that the sink's README lists"
_LEASE = "lease "  # the controller begins the description of every error about a lease like this


def request_failed(error: PravegaError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator, which may be repeated. ``what`` names the request."""
    if is_denied(error):
        return OperatorRequired(
            f"{what}: Pravega refuses: {told(error)}. {_RIGHTS}, and start again. Recovery continues where it stopped."
        )
    if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
        return OperatorRequired(f"{what}: no Pravega controller answers: {told(error)}. Check 'controller'.")
    if is_missing(error):
        return OperatorRequired(
            f"{what}: Pravega has no such stream: {told(error)}. Was it or its scope deleted, or does 'controller' name"
            " another cluster? Correct that and start again: recovery continues where it stopped."
        )
    if is_temporary(error):
        return Retriable(f"{what}: Pravega gave no answer: {told(error)}")
    return OperatorRequired(
        f"{what}: Pravega has an answer that the sink does not know: {told(error)}. See what it means and start again:"
        " recovery continues where it stopped."
    )


def write_failed(error: PravegaError, what: str) -> TwoPhaseCommitError:
    """Return the error for a participant's failed request. Its vote is no, and nothing of ``what`` is visible."""
    if is_lease_refused(error):
        return ConfigurationError(
            f"the controller does not grant the lease that 'lease_s' asks for: {told(error)} ms. Correct the option,"
            " or the controller's transaction.lease.count.max and .min.",
            option="lease_s",
        )
    advice = f"{_RIGHTS}." if is_denied(error) else "The batch can be run again."
    if isinstance(error, SegmentError) and error.answer in (Command.NO_SUCH_SEGMENT, Command.SEGMENT_IS_SEALED):
        advice = "The transaction was rolled back, or its lease has ended. The batch can be run again."
    return RoundAborted(f"{what} could not be written: {told(error)}. {advice}")


def is_denied(error: PravegaError) -> bool:
    """Return whether the user is unknown or lacks a right."""
    if isinstance(error, SegmentError):
        return error.answer == Command.AUTH_TOKEN_CHECK_FAILED
    return _code(error) in DENIED


def is_temporary(error: PravegaError) -> bool:
    """Return whether a repeated request may get another answer. An unknown error is not temporary."""
    match error:
        case SegmentError():
            return error.answer in frozenset(Command) - {*_STOPPING}
        case grpc.Call():
            return error.code() in TEMPORARY and not is_untrusted(error)
        case _:
            return not is_untrusted(error)


def is_missing(error: PravegaError) -> bool:
    """Return whether the controller does not know the stream or its scope."""
    return _code(error) is grpc.StatusCode.NOT_FOUND


def is_lease_refused(error: PravegaError) -> bool:
    """Return whether the controller refuses a lease because of its length. Recognized by the error's text, as there is
    no status code for this refusal."""
    return isinstance(error, grpc.Call) and (error.details() or "").startswith(_LEASE)


def told(error: PravegaError) -> str:
    """Return an error's text as one line."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {(error.details() or '').partition(chr(10))[0]}"
    return str(error) or type(error).__name__


def _code(error: PravegaError) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None
