"""What Pravega's answers mean, by its statuses and answers. No server."""

import uuid
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from twopc.errors import OperatorRequired, Retriable, TwoPhaseCommitError
from twopc_pravega.controller import Controller, Ping, State, Txn
from twopc_pravega.options import Stream
from twopc_pravega.outcomes import PravegaError, request_failed
from twopc_pravega.segments import Command, SegmentError


class Answer(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # gRPC has no types
    """An error of the controller."""

    __abstractmethods__: frozenset[str] = frozenset()

    def __init__(self, code: grpc.StatusCode, details: str = "x") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


UNTRUSTED = "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self signed certificate"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((Answer(code), Retriable) for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)),
        (Answer(grpc.StatusCode.ALREADY_EXISTS), Retriable),
        *((Answer(code), OperatorRequired) for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)),
        *((Answer(code), OperatorRequired) for code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OUT_OF_RANGE)),
        (Answer(grpc.StatusCode.UNAVAILABLE, UNTRUSTED), OperatorRequired),
        (SegmentError(Command.WRONG_HOST, "s"), Retriable),
        (SegmentError(Command.OPERATION_UNSUPPORTED, "s"), OperatorRequired),
        (SegmentError(99, "s"), OperatorRequired),
        (ConnectionResetError("x"), Retriable),
        (OSError("CERTIFICATE_VERIFY_FAILED"), OperatorRequired),
    ],
    ids=str,
)
def test_what_the_sink_does_not_know_is_no_outage(error: PravegaError, kind: type[TwoPhaseCommitError]) -> None:
    assert type(request_failed(error, "a look")) is kind


def test_a_stream_that_is_gone_is_called_so() -> None:
    raised = request_failed(Answer(grpc.StatusCode.NOT_FOUND), "a look")
    assert type(raised) is OperatorRequired
    assert "Pravega has no such stream" in raised.message


def test_a_transaction_of_a_stream_that_is_gone_is_unknown_and_that_of_no_other_answer() -> None:
    class Call(Answer):
        def result(self) -> Any:
            raise self

    def controller(code: grpc.StatusCode) -> Controller:
        found = object.__new__(Controller)
        found._metadata = []
        answering = SimpleNamespace(future=lambda *_, **__: Call(code))
        found._methods = dict.fromkeys(("checkTransactionState", "pingTransaction"), answering)
        return found

    txn = Txn(Stream("s", "t"), uuid.UUID(int=1))
    gone = controller(grpc.StatusCode.NOT_FOUND)
    assert (gone.state(txn), gone.ping(txn, 1)) == (State.UNKNOWN, Ping.UNKNOWN)
    away = controller(grpc.StatusCode.UNAVAILABLE)
    for ask in (away.state, lambda txn: away.ping(txn, 1)):
        with pytest.raises(grpc.RpcError):
            ask(txn)
