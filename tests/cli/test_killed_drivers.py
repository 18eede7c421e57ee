"""The command after drivers were killed: what it shows, what it changes, and what it leaves alone."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from twopc import Coordinator
from twopc.testing import MemorySink, MemoryTarget

pytestmark = pytest.mark.crash

BATCH_0, BATCH_1 = ([f"{batch}-{partition}-{n}" for partition in range(2) for n in range(3)] for batch in range(2))


# On files. --------------------------------------------------------------------------------------------------------


def test_status_tells_what_is_in_doubt_and_since_when(shop: Any, look: Any) -> None:
    shop.drive("committing")
    [*_, newest] = sorted(shop.log.glob("*.json"))
    entry = json.loads(newest.read_text())
    done = look("status", shop.log, "--json")
    assert done.code == 1
    assert done.json == {
        "log": str(shop.log),
        "owner": "shop",
        "log_id": entry["log_id"],
        "incarnation": 1,
        "kind": "decide",
        "written_at": entry["written_at"],
        "clean_stop": False,
        "entries": 3,
        "decided": 1,
        "committed_through": 0,
        "waits_for": None,
        "repetition": None,
        "in_doubt": [
            {
                "batch_id": 1,
                "incarnation": 1,
                "since": entry["written_at"],
                "sinks": {"archive": {"transactions": 2, "records": 6}},
            }
        ],
        "abandoned": [],
        "batches": [
            {
                "batch_id": batch_id,
                "incarnation": 1,
                "decided_at": json.loads((shop.log / f"{batch_id + 1:020}.json").read_text())["written_at"],
                "transactions": 2,
                "records": 6,
            }
            for batch_id in (0, 1)
        ],
        "exit_code": 1,
    }
    table = look("status", shop.log)
    assert table.code == 1
    assert all(word in table.out for word in ("shop", entry["log_id"], entry["written_at"], "In doubt", "archive"))


@pytest.mark.long
def test_in_doubt_since_is_when_it_was_decided_and_not_when_resolve_failed(shop: Any, run: Any, look: Any) -> None:
    shop.drive("committing")
    [*_, decision] = sorted(shop.log.glob("*.json"))
    [lost, _] = sorted((shop.target / "_twopc").iterdir())
    lost.unlink()
    assert run("resolve", shop.log, "--sinks", shop.sinks, "--yes").code == 4
    [doubt] = look("status", shop.log, "--json").json["in_doubt"]
    assert doubt["since"] == json.loads(decision.read_text())["written_at"]


def test_status_lists_the_ten_newest_batches_with_their_times(tmp_path: Path, look: Any) -> None:
    coordinator = Coordinator({"a": MemorySink(MemoryTarget())}, str(tmp_path), owner="query")
    for batch_id in range(12):
        coordinator.run(batch_id, lambda _: [])
    coordinator.close()
    batches = look("status", tmp_path, "--json").json["batches"]
    assert [batch["batch_id"] for batch in batches] == [*range(2, 12)]
    assert [batch["decided_at"] for batch in batches] == sorted(batch["decided_at"] for batch in batches)
    table = look("status", tmp_path).out
    assert [line.split()[0] for line in table.rpartition("records\n")[2].splitlines()] == [str(n) for n in range(2, 12)]


def test_status_of_a_query_that_stopped_cleanly_says_so(shop: Any, look: Any) -> None:
    shop.drive()
    done = look("status", shop.log, "--json")
    assert (done.code, done.json["clean_stop"], done.json["in_doubt"]) == (0, True, [])
    assert (done.json["decided"], done.json["committed_through"]) == (1, 1)
    table = look("status", shop.log)
    assert table.code == 0
    assert "stopped cleanly" in table.out
    assert "Nothing is in doubt" in table.out


@pytest.mark.variants
@pytest.mark.parametrize(
    ("kill_at", "verdicts"),
    [
        ("deciding", ["current"] * 2 + ["ended"] * 2),
        ("committing", ["decided"] * 2),
        ("commit 1", ["decided", "ended"]),
    ],
)
def test_a_dry_run_shows_the_logs_verdict_on_each_transaction_and_resolve_does_what_it_showed(
    kill_at: str, verdicts: list[str], shop: Any, run: Any, look: Any
) -> None:
    shop.drive(kill_at)
    before = shop.snapshot()
    done = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json")
    assert done.code == 1
    rows = done.json["plan"]
    assert sorted(row["verdict"] for row in rows) == verdicts
    assert {tuple(row) for row in rows} == {("sink", "transaction_id", "verdict", "open", "batch_id", "records")}
    # Before the decision of batch 1 the log does not know yet that batch 0 is committed.
    decided = (0, 3) if kill_at == "deciding" else (1, 3)
    assert all(
        (row["batch_id"], row["records"]) == ((None, None) if row["verdict"] == "current" else decided) for row in rows
    )
    assert all(row["open"] == (row["verdict"] != "ended") for row in rows)
    table = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run")
    assert table.code == 1
    assert all(row["transaction_id"] in table.out for row in rows)
    assert shop.snapshot() == before

    done = run("resolve", shop.log, "--sinks", shop.sinks, "--yes", "--json")
    assert done.code == 0
    ids = {
        verdict: sorted(row["transaction_id"] for row in rows if row["verdict"] in verdict.split())
        for verdict in ("decided ended", "current")
    }
    assert sorted(row["transaction_id"] for row in done.json["committed"]) == ids["decided ended"]
    assert sorted(row["transaction_id"] for row in done.json["aborted"]) == ids["current"]
    assert shop.files() == (BATCH_0 if kill_at == "deciding" else BATCH_0 + BATCH_1)
    assert list((shop.target / "_twopc").iterdir()) == []
    after = shop.snapshot()
    again = run("resolve", shop.log, "--sinks", shop.sinks, "--yes", "--json")
    assert (again.code, again.json["opened"], again.json["plan"]) == (0, None, [])
    assert shop.snapshot() == after  # nothing to do, and nobody fenced for it
    assert look("status", shop.log).code == 0
    shop.drive()
    assert shop.files() == BATCH_0 + BATCH_1


@pytest.mark.long
def test_what_an_older_incarnation_left_is_undecided_and_of_no_running_driver(shop: Any, run: Any, look: Any) -> None:
    shop.drive("deciding")
    [older, _] = sorted((shop.target / "_twopc").iterdir())
    zombie = older.read_bytes()
    assert run("resolve", shop.log, "--sinks", shop.sinks, "--yes").code == 0
    older.write_bytes(zombie)  # its task was slow
    later = older.with_name(older.name.replace(".archive.1.", ".archive.9."))
    later.write_bytes(zombie)
    rows = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json").json["plan"]
    assert sorted(row["verdict"] for row in rows) == ["newer", "undecided"]
    later.unlink()
    older.rename(older.with_name(older.name.replace(".archive.1.", ".archive.2.")))  # of the one that stopped cleanly
    [row] = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json").json["plan"]
    assert row["verdict"] == "undecided"


@pytest.mark.long
def test_orphans_are_rolled_back_beside_a_driver_that_goes_on(shop: Any, run: Any, look: Any) -> None:
    """Its newest round may be under way, and what is decided is its business, too."""
    shop.drive("deciding")
    [of_newest, _] = sorted((shop.target / "_twopc").iterdir())
    orphan = of_newest.with_name(of_newest.name.replace(".archive.1.1.", ".archive.1.0.9"))
    orphan.write_bytes(of_newest.read_bytes())
    before = shop.snapshot()
    dry = look("resolve", shop.log, "--sinks", shop.sinks, "--orphans", "--dry-run", "--json")
    assert sorted(row["verdict"] for row in dry.json["plan"]) == ["current"] * 2 + ["ended"] * 2 + ["undecided"]
    assert shop.snapshot() == before

    done = run("resolve", shop.log, "--sinks", shop.sinks, "--orphans", "--json")
    assert (done.code, len(done.json["aborted"]), done.json["committed"]) == (0, 1, [])
    assert shop.snapshot() == {path: data for path, data in before.items() if path != str(orphan)}
    table = run("resolve", shop.log, "--sinks", shop.sinks, "--orphans")
    assert "0 orphans were rolled back. No driver was fenced." in table.out


@pytest.mark.long
@pytest.mark.parametrize("answers", ["", "n\n"])
def test_without_a_yes_nothing_is_changed(answers: str, shop: Any, run: Any) -> None:
    shop.drive("committing")
    before = shop.snapshot()
    for command in (["resolve"], ["abandon", "--batch", "1", "--accept-loss"]):
        done = run(*command, shop.log, "--sinks", shop.sinks, answers=answers)
        assert done.code == 3
        assert "opens incarnation 2 of query shop" in done.err
        assert "Nothing was changed" in done.err
    assert shop.snapshot() == before


def test_a_yes_at_the_terminal_resolves(shop: Any, run: Any) -> None:
    shop.drive("committing")
    assert run("resolve", shop.log, "--sinks", shop.sinks, answers="y\n").code == 0
    assert shop.files() == BATCH_0 + BATCH_1


@pytest.mark.long
def test_a_lost_file_stops_resolve_and_all_else_of_the_batch_is_committed(shop: Any, run: Any) -> None:
    shop.drive("committing")
    [lost, _] = sorted((shop.target / "_twopc").iterdir())
    lost.unlink()
    done = run("resolve", shop.log, "--sinks", shop.sinks, "--yes", "--json")
    assert (done.code, done.json["error"]["kind"]) == (4, "TransactionLost")
    assert [row["records"] for row in done.json["committed"]] == [3]
    assert shop.files() == BATCH_0 + BATCH_1[3:]
    table = run("resolve", shop.log, "--sinks", shop.sinks, "--yes")
    assert table.code == 4
    assert "TransactionLost" in table.err
    assert "batch 1" in table.err


def test_abandon_gives_up_what_is_lost_alone_and_the_log_keeps_who_and_what(shop: Any, run: Any, look: Any) -> None:
    shop.drive("committing")
    [lost, _] = sorted((shop.target / "_twopc").iterdir())
    lost.unlink()
    arguments = ("abandon", shop.log, "--batch", 1, "--accept-loss", "--sinks", shop.sinks, "--by", "ann")
    refused = run(*arguments, answers="y\nn\n")
    assert refused.code == 3
    assert "3 records" in refused.err
    assert "Nothing was given up" in refused.err
    assert look("status", shop.log, "--json").json["abandoned"] == []
    done = run(*arguments, "--json", answers="y\ny\n")
    assert (done.code, done.json["noted"]) == (0, True)
    [given_up] = done.json["given_up"]
    assert (given_up["records"], given_up["kind"]) == (3, "TransactionLost")
    status = look("status", shop.log, "--json")
    assert (status.code, status.json["in_doubt"], status.json["clean_stop"]) == (0, [], True)
    [abandoned] = status.json["abandoned"]
    at = abandoned.pop("at")
    sinks = {"archive": {"transactions": [given_up["transaction_id"]], "records": 3}}
    assert abandoned == {"batch_id": 1, "by": "ann", "sinks": sinks}
    assert at[:10] == status.json["written_at"][:10]
    assert "Given up" in look("status", shop.log).out
    assert "abandon" in [json.loads(path.read_text())["kind"] for path in shop.log.glob("*.json")]
    shop.drive()  # batch 1 is repeated, and recognized as decided
    assert shop.files() == BATCH_0 + BATCH_1[3:]
    assert look("status", shop.log, "--json").json["abandoned"][0]["by"] == "ann"


@pytest.mark.long
def test_abandon_of_a_batch_of_which_nothing_is_lost_commits_it_and_gives_up_nothing(
    shop: Any, run: Any, look: Any
) -> None:
    shop.drive("committing")
    done = run("abandon", shop.log, "--batch", 1, "--accept-loss", "--sinks", shop.sinks, "--yes")
    assert done.code == 0
    assert "is completely committed: nothing was given up" in done.err
    assert shop.files() == BATCH_0 + BATCH_1
    assert look("status", shop.log, "--json").json["abandoned"] == []


@pytest.mark.long
def test_what_can_be_mended_is_not_given_up(shop: Any, run: Any, look: Any) -> None:
    shop.drive("committing")
    [staged, _] = sorted((shop.target / "_twopc").iterdir())
    decision = json.loads(max(shop.log.glob("*.json")).read_text())["unresolved"][0]
    target = shop.target / decision["sinks"]["archive"][0]["handle"]["files"][0]["target"]
    target.write_bytes(b"a stranger's")
    done = run("abandon", shop.log, "--batch", 1, "--accept-loss", "--sinks", shop.sinks, "--yes", "--json")
    assert (done.code, done.json["error"]["kind"], done.json["noted"]) == (4, "OperatorRequired", False)
    assert look("status", shop.log, "--json").json["abandoned"] == []
    assert staged.exists()
    target.unlink()
    assert run("resolve", shop.log, "--sinks", shop.sinks, "--yes").code == 0
    assert shop.files() == BATCH_0 + BATCH_1


@pytest.mark.long
def test_what_could_be_repaired_is_given_up_if_the_operator_says_so_and_the_rest_is_committed(
    shop: Any, run: Any, look: Any
) -> None:
    shop.drive("committing")
    [refused, _] = json.loads(max(shop.log.glob("*.json")).read_text())["unresolved"][0]["sinks"]["archive"]
    target = shop.target / refused["handle"]["files"][0]["target"]
    target.write_bytes(b"a stranger's")
    give_up = ("--accept-loss", "--even-if-repairable", "--sinks", shop.sinks, "--yes", "--json")
    done = run("abandon", shop.log, "--batch", 1, *give_up)
    assert (done.code, done.json["noted"]) == (0, True)
    [given_up] = done.json["given_up"]
    assert (given_up["transaction_id"], given_up["kind"]) == (refused["transaction_id"], "OperatorRequired")
    assert look("status", shop.log, "--json").json["in_doubt"] == []
    assert target.read_bytes() == b"a stranger's"
    target.unlink()
    assert shop.files() == BATCH_0 + BATCH_1[3:]
    assert not list((shop.target / "_twopc").iterdir())


@pytest.mark.long
def test_what_the_query_can_compute_again_is_given_up_only_if_the_operator_says_so(
    shop: Any, run: Any, look: Any
) -> None:
    shop.drive("committing")
    tail = max(shop.log.glob("*.json"))
    value = json.loads(tail.read_text())
    computable, other = value["unresolved"][0]["sinks"]["archive"]
    computable["fingerprint"] = [0, "0" * 16]
    tail.write_text(json.dumps(value))
    for pending in (shop.target / "_twopc").iterdir():
        pending.unlink()
    give_up = ("--batch", 1, "--accept-loss", "--sinks", shop.sinks, "--yes", "--json")

    def given_up(done: Any) -> list[str]:
        return [lost["transaction_id"] for lost in done.json["given_up"]]

    for expected in ([other["transaction_id"]], []):
        done = run("abandon", shop.log, *give_up)
        assert (done.code, given_up(done)) == (4, expected)
        assert done.json["error"]["kind"] == "TransactionLost"
        assert "can be computed again" in done.json["error"]["message"]
    done = run("abandon", shop.log, *give_up, "--even-if-repairable")
    assert (done.code, given_up(done)) == (0, [computable["transaction_id"]])
    assert look("status", shop.log, "--json").json["in_doubt"] == []


@pytest.mark.variants
@pytest.mark.parametrize("batch", [0, 2, 99])
def test_only_what_is_in_doubt_can_be_abandoned(batch: int, shop: Any, run: Any) -> None:
    shop.drive("committing")
    before = shop.snapshot()
    done = run("abandon", shop.log, "--batch", batch, "--accept-loss", "--sinks", shop.sinks, "--yes")
    assert done.code == 3
    assert f"batch {batch} is not in doubt" in done.err
    assert shop.snapshot() == before


@pytest.mark.long
def test_of_several_batches_in_doubt_the_one_that_is_stuck_is_abandoned(shop: Any, run: Any, look: Any) -> None:
    shop.drive("committing")
    *_, older, tail = sorted(shop.log.glob("*.json"))
    [batch_0] = json.loads(older.read_text())["unresolved"]
    value = json.loads(tail.read_text())
    tail.write_text(json.dumps(value | {"unresolved": [batch_0, *value["unresolved"]]}))
    [lost, _] = sorted((shop.target / "_twopc").iterdir())
    lost.unlink()
    give_up = ("--accept-loss", "--sinks", shop.sinks, "--yes", "--json")
    committed = run("abandon", shop.log, "--batch", 0, *give_up)
    assert (committed.code, committed.json["given_up"]) == (4, [])
    assert "nothing of batch 0 was given up: recovery stopped at batch 1" in committed.err
    assert run("abandon", shop.log, "--batch", 1, *give_up).code == 0
    [abandoned] = look("status", shop.log, "--json").json["abandoned"]
    assert (abandoned["batch_id"], abandoned["sinks"]["archive"]["records"]) == (1, 3)
    assert look("status", shop.log).code == 0
    assert shop.files() == BATCH_0 + BATCH_1[3:]


@pytest.mark.long
def test_abandon_without_accept_loss_is_wrong_usage(shop: Any, run: Any) -> None:
    shop.drive("committing")
    before = shop.snapshot()
    done = run("abandon", shop.log, "--batch", 1, "--sinks", shop.sinks, "--yes")
    assert done.code == 2
    assert "--accept-loss" in done.err
    assert shop.snapshot() == before


# On files and Kafka together. -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kill_at", ["deciding", "commit 1"])
def test_a_topic_and_a_folder_are_resolved_together(
    kill_at: str, make_kafka_shop: Callable[..., Any], kafka_broker: Any, run: Any, look: Any, wait: Any
) -> None:
    shop = make_kafka_shop(kafka_broker)
    shop.drive(kill_at)
    before = shop.snapshot()
    dry = look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json")
    verdicts = ["current", "ended"] if kill_at == "deciding" else ["decided"]
    assert sorted({row["verdict"] for row in dry.json["plan"] if row["sink"] == "orders"}) == verdicts
    assert (dry.code, len(dry.json["plan"])) == (1, 8 if kill_at == "deciding" else 4)
    assert shop.snapshot() == before
    assert look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run", "--json").json == dry.json
    assert shop.records() == BATCH_0
    done = run("resolve", shop.log, "--sinks", shop.sinks, "--yes", "--json")
    assert (done.code, done.json["opened"]) == (0, 2)
    wait("nothing is open", lambda: not shop.holds_readers_back())
    expected = BATCH_0 if kill_at == "deciding" else BATCH_0 + BATCH_1
    assert (shop.records(), shop.files()) == (expected, expected)
    assert run("resolve", shop.log, "--sinks", shop.sinks, "--yes").code == 0
    assert look("resolve", shop.log, "--sinks", shop.sinks, "--dry-run").code == 0


@pytest.mark.long
def test_a_timed_out_kafka_transaction_is_abandoned_and_the_next_run_goes_on(
    make_kafka_shop: Callable[..., Any], quick_broker: Any, run: Any, look: Any, wait: Any
) -> None:
    shop = make_kafka_shop(quick_broker, '"transaction.timeout.ms" = 2000\n"commit.margin.ms" = 1')
    shop.drive("commit 1")
    wait("the broker has rolled back", lambda: not shop.holds_readers_back())
    lost = run("resolve", shop.log, "--sinks", shop.sinks, "--yes", "--json")
    assert (lost.code, lost.json["error"]["kind"]) == (4, "TransactionLost")
    assert shop.files() == BATCH_0 + BATCH_1  # all else of the batch is committed
    done = run("abandon", shop.log, "--batch", 1, "--accept-loss", "--sinks", shop.sinks, "--yes", "--json")
    assert (done.code, done.json["noted"]) == (0, True)
    assert [(row["sink"], row["records"]) for row in done.json["given_up"]] == [("orders", 3)] * 2
    [abandoned] = look("status", shop.log, "--json").json["abandoned"]
    assert abandoned["sinks"]["orders"]["records"] == 6
    assert "@" in abandoned["by"]
    shop.drive()
    assert (shop.records(), shop.files()) == (BATCH_0, BATCH_0 + BATCH_1)
    assert look("status", shop.log).code == 0


@pytest.mark.long
@pytest.mark.parametrize("spoil", [Path.unlink, partial(Path.write_bytes, data=b"")], ids=["removed", "damaged"])
def test_what_has_a_whole_copy_is_written_again_and_never_given_up(
    make_kafka_shop: Callable[..., Any], quick_broker: Any, run: Any, wait: Any, spoil: Callable[[Path], object]
) -> None:
    shop = make_kafka_shop(quick_broker, '"transaction.timeout.ms" = 3000\n"commit.margin.ms" = 1', with_files=False)
    stage = shop.folder / "stage"
    shop.drive("committing", str(stage))
    wait("the broker has rolled back", lambda: not shop.holds_readers_back())
    before = shop.snapshot()
    sinks = ("--sinks", shop.sinks, "--yes")
    for command in (["resolve"], ["abandon", "--batch", "1", "--accept-loss"]):
        for wrong in ([], ["--replay-copies", shop.folder / "elsewhere"]):
            refused = run(*command, shop.log, *sinks, *wrong)
            assert refused.code == 3
            assert "--replay-copies" in refused.err
    assert shop.snapshot() == before
    spoilt, _ = sorted(stage.iterdir())
    spoil(spoilt)
    arguments = ("abandon", shop.log, "--batch", 1, "--accept-loss", *sinks, "--replay-copies", stage)
    done = run(*arguments, "--json")
    assert done.code == 0
    assert [row["records"] for row in done.json["given_up"]] == [3]
    assert [row["records"] for row in done.json["replayed"]] == [3]
    wait("nothing is open", lambda: not shop.holds_readers_back())
    assert shop.records() == BATCH_0 + BATCH_1[3:]
    assert list(stage.iterdir()) == []
