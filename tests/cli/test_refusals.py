"""When the command refuses, it reports why, changes nothing, creates nothing, and shows no secret."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twopc import Committable
from twopc.cli.recovery import Lost
from twopc.cli.sinks_file import Redaction
from twopc.errors import TransactionLost

SECRET = "hunter2-and-more"  # noqa: S105  # what must not be seen


@pytest.fixture
def every_command(shop: Any, look: Any) -> Callable[..., list[Any]]:
    """Run each command on a log, and check that the whole folder is unchanged."""

    def run_all(log: object, *, sinks: Path = shop.sinks, **environment: str) -> list[Any]:
        before = shop.snapshot()
        with_sinks = ("--sinks", sinks, "--yes")
        commands = [
            ("status", log),
            ("resolve", log, *with_sinks),
            ("resolve", log, "--dry-run", *with_sinks),
            ("abandon", log, "--batch", 1, "--accept-loss", *with_sinks),
        ]
        done = [look(*command, *options, **environment) for command in commands for options in ((), ("--json",))]
        assert shop.snapshot() == before
        return done

    return run_all


def errors(done: list[Any]) -> set[str]:
    return {one.json["error"]["kind"] for one in done if one.out.startswith("{")}


def test_a_folder_that_is_not_there_is_refused_and_not_made(every_command: Any, shop: Any) -> None:
    done = every_command(shop.log)
    assert {one.code for one in done} == {3}
    assert errors(done) == {"ConfigurationError"}
    assert all("no commit log" in one.out + one.err for one in done)
    assert not shop.log.exists()


def test_a_folder_without_entries_a_file_and_a_foreign_protocol_are_refused(
    shop: Any, look: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".0123.aside").write_text("half an entry")
    for log in (tmp_path / "empty", shop.sinks, "gopher://x/log", "memory://log"):
        done = look("status", log)
        assert (done.code, done.out) == (3, "")
    assert list(tmp_path.iterdir()) == [tmp_path / "empty", shop.sinks] or len(list(tmp_path.iterdir())) == 2


def change(entry: Path, **values: object) -> int:
    return entry.write_text(json.dumps(json.loads(entry.read_text()) | values))


DAMAGES: dict[str, Callable[[list[Path]], object]] = {
    "truncated": lambda entries: entries[-1].write_bytes(entries[-1].read_bytes()[:-40]),
    "emptied": lambda entries: entries[-1].write_bytes(b""),
    "an older one": lambda entries: entries[0].write_bytes(b"{}"),
    "of another log": lambda entries: change(entries[-1], log_id="theirs"),
    "of another query": lambda entries: change(entries[-1], owner="theirs"),
    "of Delta": lambda entries: entries[-1].write_text('{"commitInfo": {}}\n{"add": {"path": "part-0.parquet"}}\n'),
    "removed": lambda entries: entries[1].unlink(),
    "of an older incarnation": lambda entries: [change(each, incarnation=2) for each in entries[:-1]],
    "of an older batch": lambda entries: change(entries[0], decided=7),
}


@pytest.mark.crash
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_entry_is_refused_by_every_command_naming_the_file(
    damage: str, left: Any, every_command: Any
) -> None:
    DAMAGES[damage](sorted(left.log.glob("*.json")))
    done = every_command(left.log)
    assert {one.code for one in done} == {3}
    assert errors(done) == {"CorruptLog"}
    assert all(".json" in one.out + one.err and "Nothing was changed" in one.out + one.err for one in done)


@pytest.fixture
def left(shop: Any) -> Any:
    """A query whose driver was killed after its decision."""
    shop.drive("committing")
    return shop


@pytest.mark.crash
def test_a_sink_whose_prefix_is_another_than_the_logs_is_refused_by_every_command_that_asks_it(
    left: Any, every_command: Any
) -> None:
    tail = max(left.log.glob("*.json"))
    assert json.loads(tail.read_text())["prefixes"] == {"archive": "twopc"}
    change(tail, prefixes={"archive": "former"})
    looking, asking = every_command(left.log)[:2], every_command(left.log)[2:]
    assert {one.code for one in looking} == {1}
    assert {one.code for one in asking} == {3}
    assert all("start with 'former' in this commit log" in one.out + one.err for one in asking)


# The sinks file. --------------------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("not toml", "is not TOML"),
        ('archive = "files"', "has no key 'backend'"),
        ('[archive]\npath = "x"', "has no key 'backend'"),
        ('[archive]\nbackend = "papyrus"', "no backend is named 'papyrus'"),
        ('[archive]\nbackend = "files"\nfolder = "x"', "no option 'folder'"),
        ('[archive]\nbackend = "files"\npath = "${NOT_SET_HERE}"', "environment variable NOT_SET_HERE is not set"),
        ('[archive]\nbackend = "files"\npath = "${file:/no/such/file}"', "file /no/such/file can't be read"),
        ('[archive]\nbackend = "files"\npath = "${not closed"', "'${' must begin"),
        ('[archive]\nbackend = "files"\npath = "${file:}"', "'${' must begin"),
    ],
)
def test_a_wrong_sinks_file_is_refused_naming_the_place(text: str, message: str, left: Any, look: Any) -> None:
    left.sinks.write_text(text)
    before = left.snapshot()
    done = look("resolve", left.log, "--sinks", left.sinks, "--yes")
    assert (done.code, done.out) == (3, "")
    assert message in done.err
    assert str(left.sinks) in done.err
    assert left.snapshot() == before


@pytest.mark.crash
def test_a_sinks_file_without_a_sink_that_has_work_is_refused_before_anybody_is_fenced(left: Any, look: Any) -> None:
    left.sinks.write_text(left.sinks.read_text().replace("[archive]", "[other]"))
    before = left.snapshot()
    for options in ((), ("--dry-run",)):
        done = look("resolve", left.log, "--sinks", left.sinks, "--yes", *options)
        assert done.code == 3
        assert "sink 'archive'" in done.err
    assert left.snapshot() == before


@pytest.mark.crash
def test_a_value_comes_from_the_environment(left: Any, look: Any) -> None:
    left.sinks.write_text(left.sinks.read_text().replace(str(left.folder), "${BASE}"))
    assert look("resolve", left.log, "--sinks", left.sinks, "--yes", BASE=str(left.folder)).code == 0


@pytest.mark.crash
def test_a_value_comes_from_a_file(left: Any, look: Any, tmp_path: Path) -> None:
    (tmp_path / "base").write_text(f"{left.folder}\n")
    left.sinks.write_text(left.sinks.read_text().replace(str(left.folder), f"${{file:{tmp_path / 'base'}}}"))
    assert look("resolve", left.log, "--sinks", left.sinks, "--yes").code == 0


def kafka_sinks(servers: str) -> str:
    """A dotted key is one option, quoted or not."""
    return (
        f'[archive]\nbackend = "kafka"\ntopic = "t"\nbootstrap.servers = "{servers}"\n'
        '"security.protocol" = "SASL_PLAINTEXT"\nsasl.mechanism = "PLAIN"\n'
        'sasl.username = "ann"\nsasl.password = "${PASSWORD}"\n'
    )


@pytest.mark.long
@pytest.mark.crash
def test_a_target_that_does_not_answer_is_named_while_it_is_waited_for_and_the_wait_ends(
    left: Any, run: Any, silent: str
) -> None:
    left.sinks.write_text(kafka_sinks(silent))
    before = left.snapshot()
    started = time.monotonic()
    done = run("resolve", left.log, "--sinks", left.sinks, "--yes", "--timeout-s", 3, "--json", PASSWORD=SECRET)
    assert time.monotonic() - started < 60  # and not for ever, however busy the machine is
    assert (done.code, done.json["error"]["kind"], done.json["opened"]) == (6, "NoAnswer", None)
    assert "listing the transactions of archive: 2 s, 1 s left" in done.err
    assert SECRET not in done.out + done.err
    assert left.snapshot() == before


@pytest.mark.crash
def test_a_target_where_nobody_listens_is_told_by_its_address(
    left: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_kafka.client.control.CONNECT_TIMEOUT_MS", 100)  # what follows is not for every run
    left.sinks.write_text(kafka_sinks("127.0.0.1:1"))
    before = left.snapshot()
    done = look("resolve", left.log, "--yes", "--sinks", left.sinks, "--json", PASSWORD=SECRET)
    assert (done.code, done.json["error"]["kind"]) == (6, "Retriable")
    assert "no broker answered at 127.0.0.1:1" in done.json["error"]["message"]
    assert left.snapshot() == before


@pytest.mark.crash
def test_no_secret_is_shown_whatever_is_wrong(left: Any, look: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    for text in (
        f'[archive]\nbackend = "files"\npath = "/tmp"\nformat = "${{file:{tmp_path / "secret"}}}"\n',
        kafka_sinks("x:1") + 'sasl.wrong = "${PASSWORD}"\n',
        kafka_sinks("x:1") + 'acks = "${PASSWORD}"\n',
        '[archive]\nbackend = "${PASSWORD}"\n',
        '[archive]\nbackend = "files"\npath = "/tmp"\nformat = "${PASSWORD}"\n',
        '[archive]\nbackend = "files"\npath = "gopher://${PASSWORD}"\n',
    ):
        left.sinks.write_text(text)
        for options in ((), ("--json",)):
            done = look("resolve", left.log, "--sinks", left.sinks, "--yes", *options, PASSWORD=SECRET)
            assert done.code == 3, done
            assert SECRET not in done.out + done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", f"s3://AKIA:{SECRET}@bucket/log"),
        ("checkpoint", "compare", f"sftp://ann:{SECRET}@host/checkpoint", "log"),
        ("checkpoint", "repair", f"sftp://ann:{SECRET}@host/checkpoint", "log"),
        ("checkpoint", "compare", "checkpoint", f"sftp://ann:{SECRET}@host/log"),
    ],
)
def test_a_place_that_holds_a_password_is_refused_and_not_shown(arguments: tuple[str, ...], look: Any) -> None:
    for options in ((), ("--json",)):
        done = look(*arguments, *options)
        assert done.code == 3
        assert "holds a password" in done.out + done.err
        assert SECRET not in done.out + done.err


# Codes. -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("undo",), ("status",), ("resolve", "log"), ("status", "log", "--fast")])
def test_wrong_usage_is_told_as_such(arguments: tuple[str, ...], look: Any) -> None:
    done = look(*arguments)
    assert done.code == 2
    assert "Usage: twopc" in done.err


def test_the_reason_why_a_transaction_is_lost_shows_no_secret() -> None:
    redact = Redaction()
    redact.add(SECRET, "${PASSWORD}")
    lost = Lost("archive", Committable("tx", {}), TransactionLost(f"the login {SECRET} may not read it"))
    assert lost.to_json(redact)["reason"] == f"the login ${{PASSWORD}} may not read it; see {lost.error.link}"
