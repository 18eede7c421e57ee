"""The runbook and the page on the command show what it prints: their examples are run, and compared but for ids and
times."""

import re
from typing import Any

import pytest

from tests.support.pages import DOCS

PAGES = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("operating.md", "cli.md"))

OWNER = "8f0c…e1"
"""The query on the page."""


def example(command: str) -> tuple[list[str], str]:
    """The arguments of the example of a command, and its output on the page."""
    found = re.search(rf"^\$ twopc ({command} .*)\n((?:.*\n)*?)```$", PAGES, re.MULTILINE)
    assert found, f"no page has an example of {command}"
    return found[1].split(), found[2]


def run_example(command: str, shop: Any, run: Any, answers: str = "") -> tuple[str, str]:
    """What the page shows, and what the command prints, with the answer that a terminal would show."""
    arguments, shown = example(command)
    places = {"/data/twopc-log": str(shop.log), "sinks.toml": str(shop.sinks)}
    done = run(*(places.get(argument, argument) for argument in arguments), answers=answers)
    printed = f"{done.err.rstrip()} {answers}{done.out}"
    for place, path in places.items():
        printed = printed.replace(path, place)
    return shown, re.sub(r"\bquery +shop\b", f"query {OWNER}", printed)


def masked(text: str) -> str:
    """The text without ids and times, and with single spaces."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", "TIME", text)
    return " ".join(re.sub(r"\b[0-9a-f]{12}\b", "ID", text).split())


@pytest.mark.long
@pytest.mark.crash
def test_the_example_of_a_killed_query_is_what_the_commands_print(shop: Any, run: Any) -> None:
    shop.drive("commit 1")
    for command, answers in ("status", ""), ("resolve --dry-run", ""), ("resolve", "y\n"):
        shown, printed = run_example(command, shop, run, answers)
        assert masked(printed) == masked(shown)


@pytest.mark.long
@pytest.mark.crash
def test_the_example_of_abandoned_transactions_is_what_the_command_prints(shop: Any, run: Any) -> None:
    shop.drive("committing")
    min((shop.target / "_twopc").iterdir()).unlink()
    shown, printed = run_example("abandon", shop, run)
    parts = [re.escape(part.strip()) for part in masked(shown).split("…")]
    assert re.fullmatch(".*".join(parts), masked(printed)), printed
