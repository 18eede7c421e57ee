"""The support matrix has what the contract's tests have found, and a row for each of them."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.support.pages import DOCS, site_script
from twopc.testing import SinkContract

RESULTS = """
<testsuite>
<testcase classname="tests.sinks.kafka.test_contract.TestKafka" name="test_a_b" />
<testcase classname="tests.sinks.sql.test_contract.TestAppend" name="test_a_b[duckdb]" />
<testcase classname="tests.sinks.sql.test_contract.TestAppend" name="test_a_b[sqlite]"><failure /></testcase>
<testcase classname="tests.sinks.kafka.test_contract.TestKafka" name="test_c">
<skipped message="unittest.SkipTest: it commits alone" /></testcase>
<testcase classname="tests.sinks.sql.test_contract.TestAppend" name="test_c[duckdb]">
<skipped message="it has no server" /></testcase>
<testcase classname="tests.sinks.sql.test_contract.TestAppend" name="test_c[sqlite]" />
<testcase classname="tests.unit.test_memory_sink.TestMemorySink" name="test_d" />
</testsuite>
"""


@pytest.fixture
def script() -> Any:
    return site_script("support")


def test_a_mark_stands_for_what_passed_and_a_number_for_a_reason(script: Any) -> None:
    page = script.filled("<!-- support -->\nold\n<!-- end -->\n", ET.fromstring(RESULTS))  # noqa: S314  # ours
    assert "| the contract's test | Kafka | SQL |" in page
    assert "| a b | ✓ | **failed** |" in page
    assert "| c | 1 | ✓ |" in page
    assert "\n1. It commits alone.\n" in page
    assert "old" not in page


def test_sinks_with_keys_have_a_matrix_of_their_own(script: Any) -> None:
    both = "<!-- support -->\nold\n<!-- end -->\n\n<!-- keys -->\nold\n<!-- end -->\n"
    keyed = RESULTS.replace("TestAppend", "TestKeyed")
    page = script.filled(both, ET.fromstring(keyed))  # noqa: S314  # ours
    assert page.count("| a b |") == 2
    assert "| a b | **failed** |" in page.partition("<!-- keys -->")[2]
    assert script.filled(both, ET.fromstring(RESULTS)).endswith("<!-- keys -->\nold\n<!-- end -->\n")  # noqa: S314


def test_the_page_has_a_row_for_each_test_of_the_contract(script: Any) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    tests = [name.removeprefix("test_").replace("_", " ") for name in vars(SinkContract) if name.startswith("test_")]
    assert [sentence for sentence in tests if f"\n| {sentence} | " not in page] == []
    assert "**failed**" not in page


@pytest.mark.parametrize("heading", ["## What readers see", "### Records may be lost"])
def test_the_guarantees_name_every_backend(script: Any, heading: str) -> None:
    section = (DOCS / "guarantees.md").read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    backends = {name for part, name in script.COLUMNS.items() if part != "guide"}
    assert {name for name in backends if not re.search(rf"^\| .*\b{name}\b", section, re.MULTILINE)} == set()
