"""The alert rules and the dashboard: they ask for metrics that exist, and each rule is raised and ends as it should."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from pymdownx.slugs import slugify

from tests.support.pages import DOCS, ROOT
from tests.support.prometheus import BUILD_AT_MOST_S, go_program, promtool
from twopc.cli.exporter import METRICS
from twopc.observers._instruments import INSTRUMENTS, Kind

FOLDER = DOCS / "monitoring"
ALERTS, TESTS, DASHBOARD = (FOLDER / name for name in ("alerts.yml", "alerts_test.yml", "dashboard.json"))

RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
PANELS = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]

FROM_PROMETHEUS = {"instance", "job", "le"}


def exported() -> dict[str, set[str]]:
    """Return the labels of each metric that the command or an observer exports."""
    known = {name: set(labels) for name, _, labels in METRICS}
    for each in INSTRUMENTS:
        suffixes = ("_bucket", "_sum", "_count") if each.kind is Kind.HISTOGRAM else ("",)
        known |= {f"twopc_{each.prometheus}{suffix}": set(each.labels) for suffix in suffixes}
    return known


EXPORTED = exported()


def selectors(expression: str) -> Iterator[Any]:
    """Yield what an expression selects."""
    found: list[Any] = []
    promql.walk(promql.parse(expression), found.append)  # append returns None, which goes on
    for node in found:
        if isinstance(node, promql.VectorSelector):
            yield node
        elif isinstance(node, promql.MatrixSelector):
            yield node.vector_selector


def labels_of(expression: str) -> set[str]:
    """Return the labels by which an expression selects, adds up and joins."""
    matched = {each.name for selector in selectors(expression) for each in selector.matchers.matchers}
    listed = re.findall(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)", expression)
    return matched | {label.strip() for labels in listed for label in labels.split(",") if label.strip()}


def require_exported(expression: str) -> None:
    names = [selector.name for selector in selectors(expression)]
    assert names, expression
    assert not set(names) - EXPORTED.keys(), expression
    known = FROM_PROMETHEUS.union(*(EXPORTED[name] for name in names))
    assert labels_of(expression) <= known, expression


# The rules. -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_asks_for_metrics_and_labels_that_exist(alert: str) -> None:
    require_exported(RULES[alert]["expr"])


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_names_only_labels_that_its_alert_has(alert: str) -> None:
    rule = RULES[alert]
    names = [selector.name for selector in selectors(rule["expr"])]
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert shown <= EXPORTED[names[0]]


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_has_a_severity_and_what_an_operator_needs(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("alert", RULES)
def test_the_runbook_has_the_section_that_a_rule_links_to(alert: str) -> None:
    page, _, anchor = RULES[alert]["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operating.md"
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in [slugify(case="lower")(heading.replace("`", ""), "-") for heading in headings]


def test_the_pages_describe_each_alert_and_each_metric() -> None:
    alerts, metrics = (
        set(re.findall(r"^\| `(\w+)` \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE))
        for page in ("monitoring.md", "metrics.md")
    )
    assert RULES.keys() <= alerts
    assert {name for name, _, _ in METRICS} <= metrics


@pytest.mark.long
@pytest.mark.timeout(BUILD_AT_MOST_S)
@pytest.mark.parametrize("name", ["promtool", "prometheus"])
def test_go_builds_prometheus(name: str) -> None:
    program = go_program(name)
    assert program.install() is None
    done = subprocess.run([program.path, "--version"], capture_output=True, text=True, check=True)
    assert name in done.stdout + done.stderr


@pytest.mark.long
def test_promtool_takes_the_rules() -> None:
    code, printed = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS.name, folder=FOLDER)
    assert code == 0, printed
    assert f"{len(RULES)} rules found" in printed


@pytest.mark.long
def test_each_alert_is_raised_and_ends_as_its_tests_have_it() -> None:
    code, printed = promtool("test", "rules", TESTS.name, folder=FOLDER)
    assert code == 0, printed


@pytest.mark.long
@pytest.mark.parametrize("alert", RULES)
@pytest.mark.parametrize("wrong", ["vector(1) < 0", "vector(1)"], ids=["never", "always"])
def test_the_tests_notice_a_rule_that_is_wrong(alert: str, wrong: str, tmp_path: Path) -> None:
    shutil.copy(TESTS, tmp_path)
    rules = yaml.safe_load(ALERTS.read_text())
    for rule in rules["groups"][0]["rules"]:
        if rule["alert"] == alert:
            rule["expr"] = wrong
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(rules))
    code, printed = promtool("test", "rules", TESTS.name, folder=tmp_path)
    assert code == 1
    assert alert in printed


# The dashboard. ---------------------------------------------------------------------------------------------------


def expressions(panel: dict[str, Any]) -> list[str]:
    """Return what a panel asks, with its variables filled in."""
    values = {"$owner": ".*", "$__rate_interval": "1m"}
    asked = [target["expr"] for target in panel["targets"]]
    for name, value in values.items():
        asked = [text.replace(name, value) for text in asked]
    return asked


def test_a_panel_asks_for_metrics_and_labels_that_exist() -> None:
    for panel, expression in [(each, expression) for each in PANELS for expression in expressions(each)]:
        require_exported(expression)
        shown = {name for target in panel["targets"] for name in re.findall(r"{{(\w+)}}", target["legendFormat"])}
        assert shown <= set().union(*(EXPORTED[selector.name] for selector in selectors(expression))), panel["title"]


def test_every_metric_of_the_command_is_on_the_dashboard_or_in_an_alert() -> None:
    asked = [rule["expr"] for rule in RULES.values()]
    asked += [expression for panel in PANELS for expression in expressions(panel)]
    assert {name for name, _, _ in METRICS} <= {each.name for text in asked for each in selectors(text)}


@pytest.mark.long
def test_prometheus_itself_takes_what_the_panels_ask(tmp_path: Path) -> None:
    asked = [expression for panel in PANELS for expression in expressions(panel)]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, printed = promtool("check", "rules", "panels.yml", folder=tmp_path)
    assert code == 0, printed


@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
def test_grafanas_own_types_know_every_field_of_the_dashboard() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    ours = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
    assert list(_lost(ours, read)) == []


def _lost(ours: Any, read: Any, where: str = "") -> Iterator[str]:
    """Yield what the types have dropped or changed: fields that are none of theirs."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for key, value in ours.items():
            yield from _lost(value, read.get(key), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for number, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from _lost(one, other, f"{where}[{number}]")
    elif ours != read:
        yield f"{where}: {ours!r} is read as {read!r}"


def test_no_two_panels_overlap() -> None:
    cells = [
        (x, y)
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
