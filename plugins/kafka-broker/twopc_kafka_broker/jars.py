"""The jars of the broker and of Spark's Kafka source, downloaded once from Maven repositories by jgo."""

from __future__ import annotations

import logging
import os
import re
import shutil
import zipfile
from typing import TYPE_CHECKING

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from twopc_kafka_broker.cache import cache_folder, publish
from twopc_kafka_broker.errors import DevelopmentError, JarsNotAvailable, SourceNotPublished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from jgo.maven import Component, MavenContext, Project

_log = logging.getLogger(__name__)

KAFKA_VERSION = os.environ.get("TWOPC_KAFKA_VERSION", "4.3.1")
"""The version of the broker. The project's measurements use the default."""

_BROKER = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# The broker logs to slf4j 1.7 and has no logger of its own. Without one, it dies silently.
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"

_SCALA = "2.13"
_SOURCE = f"spark-sql-kafka-0-10_{_SCALA}"
_TOKEN_PROVIDER = f"spark-token-provider-kafka-0-10_{_SCALA}"
# Not every version of this jar is published everywhere. It obtains delegation tokens, which a development
# broker does not require, and 4.0.0 works with Spark 4.2.0 (measured).
_PROVIDER_FALLBACK = "4.0.0"
# The source's dependencies that pyspark does not contain.
_SOURCE_NEEDS = (_TOKEN_PROVIDER, "kafka-clients", "commons-pool2")

_RELEASE = re.compile(r"\d+\.\d+\.\d+")

_DOWNLOAD_TIMEOUT_S = 30
_DOWNLOAD_ATTEMPTS = 3


def broker_classpath() -> tuple[Path, ...]:
    """Return the broker's jars with all dependencies, downloading them (36 MB) the first time.

    Raises:
        JarsNotAvailable: The jars could not be downloaded.
    """
    return maven_jars(f"kafka_{_SCALA}-{KAFKA_VERSION}", _BROKER, _LOGGER)


def maven_jars(name: str, *coordinates: str) -> tuple[Path, ...]:
    """Return the jars of Maven `coordinates` with all dependencies, cached as `name`.

    Raises:
        JarsNotAvailable: The jars could not be downloaded.
    """
    return kept(name, lambda folder: _download(folder, coordinates))


def spark_kafka_jars(spark_version: str) -> tuple[Path, ...]:
    """Return the jars of Spark's Kafka source and sink, for the option `spark.jars`.

    These are the jars that pyspark lacks: the source, its token provider, kafka-clients and commons-pool2.

    Args:
        spark_version: As in `pyspark.__version__`. The source must match Spark's minor version; if there is none for
            this version, the newest for the same minor version is used.

    Raises:
        JarsNotAvailable: The jars could not be downloaded.
        SourceNotPublished: No source is published for this version of Spark.
    """
    return kept(f"spark-kafka-{spark_version}", lambda folder: _download_source(folder, spark_version))


def kept(name: str, download: Callable[[Path], None]) -> tuple[Path, ...]:
    """Return the jars cached as `name`; `download` puts them there if they are missing."""

    def fill(folder: Path) -> None:
        _log.info("downloading jars: %s", name)
        for attempt in Retrying(
            stop=stop_after_attempt(_DOWNLOAD_ATTEMPTS),
            wait=wait_exponential(multiplier=1, max=10),
            # The errors of requests are OSErrors. Those of jgo, also for a repository's 5xx, are RuntimeErrors.
            retry=retry_if_exception_type((OSError, RuntimeError, zipfile.BadZipFile))
            & retry_if_not_exception_type(DevelopmentError),
            reraise=True,
        ):
            with attempt:
                download(folder)

    try:
        folder = publish(cache_folder() / "jars" / name, fill)
    except DevelopmentError:
        raise
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise JarsNotAvailable(
            f"could not download the jars {name}: {error}. They come from Maven Central or the repositories "
            "in jgo's own configuration (`jgo config`): check that one can be reached and has them."
        ) from error
    return tuple(sorted(folder.glob("*.jar")))


def _download(folder: Path, coordinates: Iterable[str]) -> None:
    context = maven(folder)
    from jgo.env import EnvironmentBuilder

    environment = EnvironmentBuilder(context, cache_dir=folder / "jgo").from_endpoint("+".join(coordinates))
    # jgo separates class path and module path; here all jars go on one class path.
    keep(environment.all_jars, folder)


def _download_source(folder: Path, spark_version: str) -> None:
    context = maven(folder)
    project = context.project("org.apache.spark", _SOURCE)
    source = project.at_version(_newest_source(project, spark_version))
    # Its POM has the versions it was built with. Not resolved transitively, which would bring all of Spark.
    needs = [
        dependency.artifact.component
        for dependency in context.pom_dependencies(source.pom())
        if dependency.artifactId in _SOURCE_NEEDS and dependency.scope == "compile"
    ]
    keep([source.artifact().resolve(), *map(_jar, needs)], folder)


def _newest_source(project: Project, spark_version: str) -> str:
    project.update()
    published = [version for version in project.metadata.versions if _RELEASE.fullmatch(version)]
    if not published or spark_version in published:  # without a list, the download will show
        return spark_version
    fitting = [version for version in published if version.split(".")[:2] == spark_version.split(".")[:2]]
    if not fitting:
        newest = max(published, key=_numbers)
        raise SourceNotPublished(
            f"no Kafka source is published for Spark {spark_version}; the newest is for {newest}. To read from Kafka"
            f" with Spark, run `pip install 'pyspark=={newest}'`. Kafka as a sink of twopc needs no such source."
        )
    return max(fitting, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _jar(component: Component) -> Path:
    try:
        return component.artifact().resolve()
    except RuntimeError:
        if component.project.artifactId != _TOKEN_PROVIDER:
            raise
        return component.project.at_version(_PROVIDER_FALLBACK).artifact().resolve()


def maven(folder: Path) -> MavenContext:
    """Return a Maven context for one download into `folder`."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext

    # Each attempt has its own empty repository folder, rather than ~/.m2: jgo writes downloads in place, so it
    # would take the partial file of an interrupted attempt for a complete one.
    shutil.rmtree(folder / "m2", ignore_errors=True)
    return MavenContext(
        repo_cache=folder / "m2",
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=_DOWNLOAD_TIMEOUT_S,
    )


def keep(jars: Iterable[Path], folder: Path) -> None:
    """Copy `jars` into `folder` after checking them, and remove the files that resolving them left there."""
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            # jgo only warns about a wrong checksum; reading every entry finds damage.
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{jar.name} is damaged at {damaged}")
        shutil.copyfile(jar, folder / jar.name)
    for leftover in ("m2", "jgo"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
