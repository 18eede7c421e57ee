"""The plugin speaks Kafka's protocol in one place: each request is built, and each error code has its meaning, once."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.pages import ROOT

PLUGIN = ROOT / "plugins" / "kafka" / "twopc_kafka"


def test_every_request_is_built_in_one_module() -> None:
    built = defaultdict(set)
    for path in PLUGIN.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name == "Produce" or name.endswith("Request"):
                    built[name].add(path.relative_to(PLUGIN).as_posix())
    assert "MetadataRequest" in built
    assert {name: where for name, where in built.items() if where != {"client/requests.py"}} == {}
