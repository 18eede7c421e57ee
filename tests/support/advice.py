"""Follows the advice in error messages: takes it from the message itself, so that a test fails if the advice
changes."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.support.between import nothing
from twopc import Committable, Coordinator, Participant, Round, Vote, WholeBatchSink, create_sink
from twopc.cli.commands import cli
from twopc.errors import TwoPhaseCommitError
from twopc.log.history import read_history


def told(error: BaseException, advice: str) -> re.Match[str]:
    """Return the match of ``advice``, a regular expression, in an error's message."""
    found = re.search(advice, error.message if isinstance(error, TwoPhaseCommitError) else str(error))
    assert found, f"{advice!r} is not advised: {error}"
    return found


@contextlib.contextmanager
def raises(words: str) -> Iterator[pytest.ExceptionInfo[TwoPhaseCommitError]]:
    """Expect an error with the words of a row of the error catalog; ``…`` skips text."""
    with pytest.raises(TwoPhaseCommitError, match=".*".join(map(re.escape, words.split("…")))) as raised:
        yield raised


def killed(*_: object) -> None:
    raise OSError("killed")


class Query:
    """A query with one sink, ``orders``, and its operator. Each call stands for a new process.

    Attributes:
        options: the sink's options, with None for omitted ones. An operator may change them.
        columns: the columns of its records besides ``value``, each with its only value.
        start_timeout_s: how long a start waits for a response before the log's first decision.
    """

    def __init__(self, folder: Path, backend: str, options: Mapping[str, Any], start_timeout_s: float = 0) -> None:
        self.log, self._backend, self.options = folder / "log", backend, dict(options)
        self.columns: Mapping[str, Any] = {}
        self.start_timeout_s = start_timeout_s

    def run(
        self,
        batch_id: int,
        *values: str,
        meanwhile: Callable[[], object] = nothing,
        before_commit: Callable[[], object] = nothing,
        after_commit: Callable[[], object] = nothing,
    ) -> None:
        """Write records as a batch, unless it is decided, and commit it. ``meanwhile`` is called before the
        decision."""
        given = {name: value for name, value in self.options.items() if value is not None}
        sinks = {"orders": create_sink(self._backend, given)}
        columns = {name: pa.concat_arrays([pa.array(value)] * len(values)) for name, value in self.columns.items()}
        name = "commit_batch" if isinstance(sinks["orders"], WholeBatchSink) else "commit"
        commit = getattr(sinks["orders"], name)

        def between(*arguments: Any) -> None:
            before_commit()
            commit(*arguments)
            after_commit()

        setattr(sinks["orders"], name, between)

        def phase_one(round: Round) -> list[Vote]:
            with Participant(sinks, round, partition=0) as participant:
                participant.write("orders", pa.record_batch({"value": list(values), **columns}))
                vote = participant.pre_commit()
            meanwhile()
            return [vote]

        limits: Mapping[str, Any] = {"rest_interval_s": None, "start_timeout_s": self.start_timeout_s}
        with Coordinator(sinks, self.log, owner="query", **limits) as coordinator:
            coordinator.run(batch_id, phase_one)

    def decide(self, batch_id: int, *values: str) -> None:
        """Run a batch with a driver that dies before the commit."""
        with pytest.raises(OSError, match="killed"):
            self.run(batch_id, *values, before_commit=killed)

    def commit(self, batch_id: int, *values: str) -> None:
        """Run a batch with a driver that dies after the commit."""
        with pytest.raises(OSError, match="killed"):
            self.run(batch_id, *values, after_commit=killed)

    def stops(self, batch_id: int, words: str, before_commit: Callable[[], object] = nothing) -> TwoPhaseCommitError:
        """Start the query, and return the error with ``words`` that stops it."""
        with raises(words) as raised:
            self.run(batch_id, "never", before_commit=before_commit)
        return raised.value

    def decided(self) -> Sequence[Committable]:
        """Return the transactions of the newest batch."""
        return read_history(str(self.log)).tail.unresolved[-1].committables["orders"]

    def abandon(self, error: TwoPhaseCommitError) -> None:
        """Give up the batch that an error names, with the command in its message."""
        sinks = self.log.with_name("sinks.toml")
        options = (f"{json.dumps(name)} = {json.dumps(str(value))}\n" for name, value in self.options.items())
        sinks.write_text(f"[orders]\nbackend = '{self._backend}'\n{''.join(options)}")
        command = told(error, r"'twopc (abandon[^']*)'")[1].split()
        command += [str(self.log), "--batch", str(error.batch_id), "--accept-loss", "--sinks", str(sinks), "--yes"]
        done = CliRunner().invoke(cli, command)
        assert (done.exit_code, "nothing was given up" in done.output) == (0, False), done.output

    def copy_log(self, name: str) -> None:
        shutil.copytree(self.log, self.log.with_name(name))

    def restore_log(self, name: str) -> None:
        shutil.rmtree(self.log)
        shutil.copytree(self.log.with_name(name), self.log)
