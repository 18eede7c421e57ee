"""Java's own client, run from a source file beside this one, and the text that it and the tests exchange."""

import base64
import subprocess
from pathlib import Path

import pytest

from twopc_kafka_broker.errors import JavaNotFound
from twopc_kafka_broker.jars import broker_classpath
from twopc_kafka_broker.java import find_java


def run_java(source: str, *arguments: object) -> list[str]:
    """The lines that the program prints."""
    try:
        java = find_java(("jdk.compiler",))
    except JavaNotFound:
        pytest.skip("needs a Java that compiles: a JDK, not only a runtime")
    classpath = ":".join(map(str, broker_classpath()))
    file = Path(__file__).with_name(source)
    command = [str(java.executable), "-cp", classpath, str(file), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def text(content: bytes | None) -> str:
    return "null" if content is None else f"={base64.b64encode(content).decode()}"
