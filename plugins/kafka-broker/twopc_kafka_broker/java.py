"""Find a recent enough Java runtime, or download one."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twopc_kafka_broker.cache import cache_folder, publish
from twopc_kafka_broker.errors import JavaNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

MINIMUM_VERSION = 17
"""Spark 4 and Kafka 4 brokers both require Java 17."""

FETCHED_VERSION = "17"
"""The version to download if no runtime is found. The project's tests run on this version."""

SPARK_MODULES = ("jdk.incubator.vector",)
"""Spark 4 names these on Java's command line. Reduced runtimes that lack them can only run the broker."""

_PROBE_TIMEOUT_S = 30
_STALLED_DOWNLOAD_TIMEOUT_S = 30


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: The folder for JAVA_HOME.
        version: The version that the runtime reports, such as `17.0.15`.
    """

    home: Path
    version: str

    @property
    def executable(self) -> Path:
        """The path of the `java` command."""
        return self.home / "bin" / "java"


def find_java(modules: tuple[str, ...] = ()) -> Java:
    """Find a runtime. Looks at JAVA_HOME, then at `java` on the PATH, then for a JDK that `fetch_java` has put into the
    cache.

    Args:
        modules: Java modules that the runtime must contain, such as `SPARK_MODULES`.

    Raises:
        JavaNotFound: No runtime is suitable; the message explains why each was rejected, and what to install.
    """
    refusals = []
    for origin, executable in _candidates():
        found = _probe(executable, modules)
        if isinstance(found, Java):
            return found
        refusals.append(f"{origin} ({executable}): {found}")
    raise JavaNotFound(_advice(refusals))


def fetch_java(modules: tuple[str, ...] = ()) -> Java:
    """Download a JDK into the cache with `install-jdk`, unless the cache already contains one.

    Args:
        modules: As for `find_java`.

    Raises:
        JavaNotFound: The JDK could not be downloaded.
    """
    import jdk

    def fill(folder: Path) -> None:
        _log.info("downloading a JDK %s", FETCHED_VERSION)
        # install-jdk sets no timeout, so a stalled connection would hang.
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_STALLED_DOWNLOAD_TIMEOUT_S)
        try:
            jdk.install(FETCHED_VERSION, path=str(folder))
        finally:
            socket.setdefaulttimeout(before)

    try:
        publish(_fetched_folder(), fill)
    except (jdk.JdkError, OSError) as error:
        raise JavaNotFound(_advice([f"download of JDK {FETCHED_VERSION}: {error}"], can_fetch=False)) from error
    return find_java(modules)


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "java on the PATH", Path(on_path)
    # macOS archives have the runtime in Contents/Home.
    for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
        for fetched in sorted(_fetched_folder().glob(pattern)):
            yield "fetched earlier", fetched


def _fetched_folder() -> Path:
    return cache_folder() / f"jdk-{FETCHED_VERSION}"


def _probe(executable: Path, modules: tuple[str, ...]) -> Java | str:
    """Return the runtime that `executable` belongs to, or the reason why the runtime is not suitable."""
    added = [f"--add-modules={','.join(modules)}"] if modules else []
    try:
        # Java itself is asked for its home: the command on the PATH may be a link or a wrapper elsewhere.
        answer = subprocess.run(
            [executable, *added, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    told = answer.stderr + answer.stdout
    settings = dict(
        re.findall(r"^\s+(java\.home|java\.version|java\.specification\.version) = (.+)$", told, re.MULTILINE)
    )
    if "java.home" not in settings or "java.specification.version" not in settings:
        missing = [module for module in modules if module in told]
        return f"lacks the module {', '.join(missing)}" if missing else "does not tell its version"
    # Java 8 reports 1.8.
    if int(settings["java.specification.version"].split(".")[0]) < MINIMUM_VERSION:
        return f"is version {settings.get('java.version', '?')}, older than {MINIMUM_VERSION}"
    return Java(home=Path(settings["java.home"]), version=settings.get("java.version", "?"))


def _advice(refusals: list[str], *, can_fetch: bool = True) -> str:
    tried = "".join(f"\n  {refusal}" for refusal in refusals)
    fetch = ", or let `python -m twopc_kafka_broker` fetch one" if can_fetch else ""
    return (
        f"no Java runtime of version {MINIMUM_VERSION} or later was found."
        + (f" Tried:{tried}\n" if tried else " ")
        + "Install one (on Debian and Ubuntu the package openjdk-17-jre-headless, on Fedora "
        f"java-21-openjdk-headless, with Homebrew openjdk@17), or set JAVA_HOME to one{fetch}."
    )
