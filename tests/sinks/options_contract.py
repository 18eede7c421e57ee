"""What the options of every sink of a database keep. A sink's own module subclasses ``OptionsContract``, beside the
fixture ``place``."""

import logging
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import twopc
from tests.support.sink_place import from_log
from twopc import Round
from twopc.errors import ConfigurationError, TwoPhaseCommitError


class OptionsContract:
    """Options are checked before anything is connected to, and a password is seen nowhere (invariant 8).

    Attributes:
        good: options, with the password ``hunter2``.
        wrong: options that are wrong, each with the option that is named.
    """

    good: ClassVar[Mapping[str, str]]
    wrong: ClassVar[Sequence[Mapping[str, Any]]]

    def test_a_wrong_option_is_named_and_no_password_shown(self, place: Any) -> None:
        assert isinstance(twopc.create_sink(place.backend, self.good), place.sink_class)
        every = [{"table": ""}, {"table": "a.b.c"}, {"upsert_by": "id,,day"}, {"lock_timeout_s": "nan"}, {"upsert": ""}]
        for wrong in (*self.wrong, *every):
            with pytest.raises(ConfigurationError) as refused:
                place.sink_class({**self.good, **wrong})
            assert refused.value.option in wrong, wrong
            assert "ter2" not in "".join(traceback.format_exception(refused.value))

    def test_the_password_is_in_no_repr_error_log_or_committable(
        self, place: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        secret, committable = place.password, place.vote(["a"])
        told = [repr(place.sink()), repr(place.sink()._options), repr(committable), str(committable.to_json())]
        calls: list[Callable[[Any], object]] = [
            lambda sink: sink.open(),
            lambda sink: sink.validate(pa.schema([])),
            lambda sink: place.commit(committable, sink),
            lambda sink: sink.seal([committable], 0.0),
            lambda sink: sink.abort(committable),
            lambda sink: list(sink.recover()),
            lambda sink: sink.begin(sink.transactional_ids.allocate(Round(1, 1), 0)),
        ]
        for call in calls:
            with pytest.raises(TwoPhaseCommitError, match=r"authentication failed|Access denied") as error:
                call(place.bound(**place.as_reached(place.reach(password=f"{secret}-wrong")), lock_timeout_s=1))
            told.append("".join(traceback.format_exception(error.value)))
        assert not [text for text in [*told, caplog.text] if secret in text]

    def test_a_sink_that_has_travelled_reaches_the_same_server(self, place: Any) -> None:
        twin = pickle.loads(pickle.dumps(place.sink()))  # noqa: S301  # our own bytes
        assert list(twin.recover()) == []
        place.commit(from_log(place.vote(["a"])), twin)
        assert place.values() == ["a"]
