"""The pure half of the commit log: what the next entry is, and entries as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twopc import Committable, Round
from twopc.errors import ConfigurationError, CorruptLog, LogMismatch
from twopc.log.entries import Abandonment, Decision, Entry, Kind, abandoned, amended, closed, completed, decided, opened
from twopc.log.entry_json import parse, serialise

A = Committable("t.log.a.1.0.0.0.0", {"epoch": 3, "topics": ["x", None]}, 5)
B = Committable("t.log.b.1.0.0.0.0", {})


def decision(batch_id: int, incarnation: int = 1) -> Decision:
    return Decision(Round(incarnation, batch_id), {"a": (A,), "b": (B,)})


def two_unresolved() -> Entry:
    """The format allows more unresolved batches than a coordinator leaves."""
    return replace(decided(opened(None, "query"), decision(2)), unresolved=(decision(1), decision(2)))


# What the next entry is. ------------------------------------------------------------------------------------------


def test_a_new_log_starts_with_incarnation_1_and_nothing_decided() -> None:
    entry = opened(None, "query")
    assert (entry.kind, entry.owner, entry.incarnation) == ("open", "query", 1)
    assert (entry.decided, entry.unresolved, entry.committed_through) == (None, (), None)


def test_two_new_logs_have_different_names() -> None:
    assert opened(None, "query").log_id != opened(None, "query").log_id


def test_an_open_entry_carries_forward_what_is_decided_and_unresolved() -> None:
    first = opened(None, "query")
    tail = decided(first, decision(0))
    reopened = opened(tail, "query")
    assert (reopened.kind, reopened.incarnation, reopened.log_id) == ("open", 2, first.log_id)
    assert (reopened.decided, reopened.unresolved) == (0, (decision(0),))
    assert reopened.committed_through == -1


def test_a_decision_records_that_every_older_batch_is_committed() -> None:
    tail = decided(opened(None, "query"), decision(0))
    following = decided(tail, decision(1))
    assert (following.decided, following.unresolved, following.committed_through) == (1, (decision(1),), 0)


def test_a_clean_stop_leaves_nothing_unresolved_and_remembers_the_decided_batch() -> None:
    tail = closed(decided(opened(None, "query"), decision(7)))
    assert (tail.kind, tail.decided, tail.unresolved, tail.committed_through) == ("close", 7, (), 7)


def test_every_entry_has_an_id_of_its_own() -> None:
    first = opened(None, "query")
    second = decided(first, decision(0))
    assert len({first.entry_id, second.entry_id, closed(second).entry_id, opened(second, "query").entry_id}) == 4


def test_a_log_of_another_query_is_refused_naming_both_queries() -> None:
    with pytest.raises(LogMismatch, match=r"query theirs.*query ours.*Nothing was written"):
        opened(opened(None, "theirs"), "ours")


def test_a_sink_keeps_its_prefix_for_as_long_as_the_log_lasts() -> None:
    first = opened(None, "query", {"a": "old", "b": "b"})
    later = opened(closed(decided(first, decision(7))), "query", {"a": "old"})
    assert later.prefixes == {"a": "old", "b": "b"}
    assert parse(serialise(later), "here") == later
    with pytest.raises(
        LogMismatch, match=r"sink 'a' start with 'old'.*with 'new'.*Nothing was written.*first_batch_id=8"
    ):
        opened(later, "query", {"a": "new"})


def test_a_log_without_prefixes_takes_those_of_the_next_coordinator() -> None:
    before = opened(None, "query")
    assert "prefixes" not in json.loads(serialise(before))
    assert opened(parse(serialise(before), "here"), "query", {"a": "p"}).prefixes == {"a": "p"}


def test_what_is_given_up_leaves_the_decision_and_is_noted_with_who_and_when() -> None:
    tail = decided(opened(None, "query"), decision(7))
    entry = abandoned(tail, 7, {"a": [A]}, "ann@ops")
    assert (entry.kind, entry.decided, entry.committed_through) == ("abandon", 7, 6)
    assert entry.unresolved == (Decision(Round(1, 7), {"a": (), "b": (B,)}),)
    assert entry.abandoned == (Abandonment(Decision(Round(1, 7), {"a": (A,)}), "ann@ops", entry.written_at),)


def test_a_decision_of_which_all_is_given_up_is_still_to_be_completed() -> None:
    entry = abandoned(ENTRY, 0, {"a": [A], "b": [B]}, "ann@ops")
    assert entry.unresolved == (Decision(Round(1, 0), {"a": (), "b": ()}),)
    assert closed(entry).committed_through == 0


def test_what_was_given_up_stays_on_record_in_every_later_entry() -> None:
    tail = abandoned(ENTRY, 0, {"a": [A], "b": [B]}, "ann@ops")
    later = closed(decided(opened(tail, "query"), decision(1)))
    assert later.abandoned == tail.abandoned
    assert abandoned(decided(later, decision(2)), 2, {"b": [B]}, "bob").abandoned[0] == tail.abandoned[0]


@pytest.mark.parametrize("given_up", [{"a": [A]}, {"a": [A], "b": [B]}])
@pytest.mark.parametrize("batch_id", [1, 2])
def test_an_abandonment_leaves_the_other_unresolved_batches_and_an_entry_that_can_be_read(
    batch_id: int, given_up: dict[str, list[Committable]]
) -> None:
    entry = abandoned(two_unresolved(), batch_id, given_up, "ann@ops")
    [other] = {1, 2} - {batch_id}
    assert decision(other) in entry.unresolved
    assert all(
        A not in of_sink for d in entry.unresolved if d.batch_id == batch_id for of_sink in d.committables.values()
    )
    assert parse(serialise(entry), "here") == entry


@pytest.mark.parametrize(
    ("tail", "batch_id", "given_up", "refusal"),
    [
        (two_unresolved(), 0, A, r"batch 0 can't be abandoned.*\[1, 2\].*Nothing was changed"),
        (two_unresolved(), 3, A, r"batch 3 can't be abandoned.*\[1, 2\].*Nothing was changed"),
        (closed(decided(opened(None, "query"), decision(0))), 0, A, "Nothing was changed"),
        (decided(opened(None, "query"), decision(0)), 0, B, rf"{B.transaction_id} of sink 'a' can't be abandoned"),
    ],
)
def test_only_transactions_of_an_unresolved_batch_can_be_abandoned(
    tail: Entry, batch_id: int, given_up: Committable, refusal: str
) -> None:
    with pytest.raises(LogMismatch, match=refusal):
        abandoned(tail, batch_id, {"a": [given_up]}, "ann@ops")


def test_the_newest_batch_of_each_sink_is_carried_forward_until_it_is_given_up() -> None:
    """A sink looks for it in its target system. What was given up is not there."""
    entry = decided(ENTRY, Decision(Round(1, 1), {"a": (A,), "b": ()}))
    assert entry.newest == {**ENTRY.newest, "a": 1}
    for later in (completed(entry), closed(entry), opened(closed(entry), entry.owner, {})):
        assert later.newest == entry.newest
    assert "a" not in abandoned(entry, 1, {"a": [A]}, "ann@ops").newest


# Entries as JSON. -------------------------------------------------------------------------------------------------

COUNT = st.integers(0, 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
COMMITTABLES = st.lists(
    st.builds(Committable, st.text(), st.dictionaries(st.text(), JSON, max_size=3), st.none() | COUNT), max_size=3
).map(tuple)
SINKS = st.dictionaries(st.text(), COMMITTABLES, max_size=3)


KINDS: tuple[Kind, ...] = ("open", "decide", "amend", "abandon", "close")


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """An entry as the functions above build it: unresolved batches ascend, and the newest is the decided one."""
    batches = sorted(draw(st.sets(COUNT, max_size=3)))
    unresolved = tuple(Decision(Round(draw(COUNT), batch), draw(SINKS)) for batch in batches)
    newest = batches[-1] if batches else draw(st.none() | COUNT)
    kind: Kind = draw(st.sampled_from(KINDS)) if not batches else "decide"
    lost = tuple(
        Abandonment(Decision(Round(draw(COUNT), draw(COUNT)), draw(SINKS)), draw(st.text()), draw(st.text()))
        for _ in range(draw(st.integers(0, 2)))
    )
    texts = [draw(st.text(min_size=1)) for _ in range(4)]
    return Entry(
        kind,
        texts[0],
        texts[1],
        texts[2],
        draw(st.integers(1, 2**63 - 1)),
        newest,
        unresolved,
        texts[3],
        lost,
        newest=draw(st.dictionaries(st.text(), COUNT, max_size=3)),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])  # beside other work, no machine is fast
@given(entries())
def test_what_is_serialised_is_parsed_to_an_equal_entry(entry: Entry) -> None:
    assert parse(serialise(entry), "here") == entry


def test_a_person_and_a_monitor_can_read_what_is_decided_and_through_which_batch_all_is_committed() -> None:
    entry = decided(opened(None, "query"), decision(4))
    value = json.loads(serialise(entry))
    assert (value["format"], value["decided"], value["committed_through"], value["owner"]) == (1, 4, 3, "query")


ENTRY = decided(opened(None, "query"), decision(0))
VALUE: dict[str, Any] = json.loads(serialise(ENTRY))


def refused(data: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"^slot 7 is not an entry .*Nothing was changed"):
        parse(data, "slot 7")


def test_an_entry_truncated_anywhere_is_refused() -> None:
    whole = serialise(ENTRY)
    for length in range(len(whole)):
        refused(whole[:length])


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 64, b"\xff\xfe\xfd", b"null", b"[]", b"{}", b"7", b'"open"', b"not json", b"[" * 100_000]
)
def test_what_is_no_object_of_ours_is_refused(data: bytes) -> None:
    refused(data)


def test_a_handle_nested_too_deep_is_refused() -> None:
    whole = serialise(ENTRY)
    refused(whole.replace(b'"epoch": 3', b'"epoch": ' + b"[" * 100_000 + b"]" * 100_000))


def test_an_entry_that_would_fill_the_memory_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_ENTRY", 1000)
    refused(serialise(ENTRY).replace(b'"epoch": 3', b'"epoch": [' + b"[]," * 1000 + b"[]]"))


def test_what_is_wrong_is_told_in_few_words() -> None:
    with pytest.raises(CorruptLog) as told:
        parse(json.dumps(VALUE | {"unresolved": "x" * 100_000}).encode(), "slot 7")
    assert len(str(told.value)) < 1000


def test_a_decision_that_is_too_long_is_refused_and_one_that_stands_is_always_carried_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_DECISION", len(serialise(ENTRY)) - 1)
    with pytest.raises(ConfigurationError, match=r"decision of batch 0 would have .* Nothing of it is visible"):
        serialise(ENTRY)
    for later in (opened(ENTRY, "query"), amended(ENTRY, decision(0)), abandoned(ENTRY, 0, {"a": [A]}, "ann@ops")):
        assert parse(serialise(later), "here") == later


NO_COUNTS: tuple[object, ...] = (True, False, -1, 1.5, "1", [], {}, 2**63, 10**4000, float("inf"), float("nan"))
UNRESOLVED: dict[str, Any] = VALUE["unresolved"][0]


def each(*wrong: object) -> tuple[object, ...]:
    return wrong


def of_decision(**wrong: object) -> dict[str, Any]:
    return {"unresolved": [UNRESOLVED | wrong]}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"format": wrong} for wrong in each(0, "1", None, True, 1.0)),
        *({"newest": wrong} for wrong in each(None, [], 1, "a", {"a": None}, {"a": True}, {"a": -1}, {"a": [0]})),
        *({field: wrong} for field in ("incarnation", "decided") for wrong in NO_COUNTS),
        *(
            {field: wrong}
            for field in ("kind", "entry_id", "log_id", "owner", "written_at")
            for wrong in each(None, True, 1, [], {})
        ),
        {"kind": "undo"},
        *({"unresolved": wrong} for wrong in each(None, True, 1, "", "text", {}, {"0": {}}, [None], [[]], ["x"])),
        *(
            of_decision(**{field: wrong})
            for field in ("batch_id", "incarnation")
            for wrong in each(None, True, -1, 1.5, "0", [])
        ),
        *(
            of_decision(sinks=wrong)
            for wrong in each(None, [], "a", {"a": None}, {"a": {}}, {"a": ""}, {"a": ["x"]}, {"a": [{}]})
        ),
        *({"decided": newest} | of_decision(batch_id=3) for newest in (None, 1)),  # not the decided one
        # Out of order, and twice.
        *(
            {"decided": last, "unresolved": [UNRESOLVED | {"batch_id": batch} for batch in (first, last)]}
            for first, last in ((1, 0), (0, 0))
        ),
    ],
)
def test_a_field_of_a_wrong_type_or_value_is_refused(wrong: dict[str, Any]) -> None:
    refused(json.dumps(VALUE | wrong).encode())


@pytest.mark.parametrize("field", [name for name in VALUE if name not in ("committed_through", "newest")])
def test_a_missing_field_is_refused(field: str) -> None:
    refused(json.dumps({name: value for name, value in VALUE.items() if name != field}).encode())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("transaction_id", (None, 1)),
        ("handle", (None, [], "x")),
        ("records", (True, -1, 1.5, "5", [])),
        (
            "replay_copy",
            (7, "", "..", "../other/copy.arrow", "/etc/copy.arrow", "nul\0.arrow", "line\n.arrow", ".hidden"),
        ),
    ],
)
def test_a_committable_of_wrong_types_is_refused(field: str, values: tuple[object, ...]) -> None:
    for wrong in values:
        refused(json.dumps(VALUE | of_decision(sinks={"a": [A.to_json() | {field: wrong}]})).encode())


ABANDONED: dict[str, Any] = json.loads(serialise(abandoned(ENTRY, 0, {"a": [A]}, "ann@ops")))


@pytest.mark.parametrize(
    "wrong",
    [None, True, 1, "text", {}, {"by": None}, {"at": 1}, {"batch_id": -1}, {"incarnation": None}, {"sinks": []}],
)
def test_an_abandonment_of_wrong_types_is_refused(wrong: object) -> None:
    [lost] = ABANDONED["abandoned"]
    refused(
        json.dumps(ABANDONED | {"abandoned": [lost | wrong] if isinstance(wrong, dict) and wrong else wrong}).encode()
    )


@pytest.mark.parametrize("field", ["by", "at", "batch_id", "incarnation", "sinks"])
def test_an_abandonment_that_lacks_a_field_is_refused(field: str) -> None:
    [lost] = ABANDONED["abandoned"]
    lacking = {name: value for name, value in lost.items() if name != field}
    refused(json.dumps(ABANDONED | {"abandoned": [lacking]}).encode())
