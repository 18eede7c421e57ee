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
"""The version of the broker. The default is the one that the project is measured on."""

_BROKER = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# The broker speaks to slf4j 1.7 and brings no logger of its own: without one it dies in silence.
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"

_SCALA = "2.13"
_SOURCE = f"spark-sql-kafka-0-10_{_SCALA}"
_TOKEN_PROVIDER = f"spark-token-provider-kafka-0-10_{_SCALA}"
# Not every version of this jar is published everywhere. It obtains delegation tokens, which a development
# broker does not ask for, and 4.0.0 was measured to work under 4.2.0.
_PROVIDER_FALLBACK = "4.0.0"
# All that the source needs beyond what pyspark itself contains.
_SOURCE_NEEDS = (_TOKEN_PROVIDER, "kafka-clients", "commons-pool2")

_RELEASE = re.compile(r"\d+\.\d+\.\d+")

_DOWNLOAD_TIMEOUT_S = 30
_DOWNLOAD_ATTEMPTS = 3


def broker_classpath() -> tuple[Path, ...]:
    """Return the jars of the broker with all their dependencies, downloading them (36 MB) the first time.

    Raises:
        JarsNotAvailable: They could not be downloaded.
    """
    return maven_jars(f"kafka_{_SCALA}-{KAFKA_VERSION}", _BROKER, _LOGGER)


def maven_jars(name: str, *coordinates: str) -> tuple[Path, ...]:
    """Return the jars of Maven `coordinates` with all their dependencies, kept in the cache by `name`.

    Raises:
        JarsNotAvailable: They could not be downloaded.
    """
    return kept(name, lambda folder: _download(folder, coordinates))


def spark_kafka_jars(spark_version: str) -> tuple[Path, ...]:
    """Return the jars for the option `spark.jars` that provide Spark's Kafka source and sink.

    Only those that pyspark lacks: the source, its token provider, kafka-clients and commons-pool2.

    Args:
        spark_version: As in `pyspark.__version__`. The source must match Spark's minor version; if there is none for
            this version, the newest for the same minor version is used.

    Raises:
        JarsNotAvailable: They could not be downloaded.
        SourceNotPublished: There is none for this Spark.
    """
    return kept(f"spark-kafka-{spark_version}", lambda folder: _download_source(folder, spark_version))


def kept(name: str, download: Callable[[Path], None]) -> tuple[Path, ...]:
    """Return the jars cached as `name`; `download` puts them there if they are missing."""

    def fill(folder: Path) -> None:
        _log.info("downloading jars: %s", name)
        for attempt in Retrying(
            stop=stop_after_attempt(_DOWNLOAD_ATTEMPTS),
            wait=wait_exponential(multiplier=1, max=10),
            # requests' errors are OSErrors; jgo's own, also for a repository's 5xx, are RuntimeErrors.
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
    # all_jars, as jgo sorts jars into class path and module path; all go on one class path.
    keep(environment.all_jars, folder)


def _download_source(folder: Path, spark_version: str) -> None:
    context = maven(folder)
    project = context.project("org.apache.spark", _SOURCE)
    source = project.at_version(_newest_source(project, spark_version))
    # Its POM names the versions it was built with. Not resolved further down: that would bring all of Spark.
    needs = [
        dependency.artifact.component
        for dependency in context.pom_dependencies(source.pom())
        if dependency.artifactId in _SOURCE_NEEDS and dependency.scope == "compile"
    ]
    keep([source.artifact().resolve(), *map(_jar, needs)], folder)


def _newest_source(project: Project, spark_version: str) -> str:
    project.update()
    published = [version for version in project.metadata.versions if _RELEASE.fullmatch(version)]
    if not published or spark_version in published:  # with no list of versions, the download tells
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
    """Return access to Maven repositories, for one download into `folder`."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext

    # A repository folder of its own, empty for each attempt: jgo writes downloads in place, so that what an
    # interrupted attempt left behind would be taken for whole, and by default that would be in ~/.m2.
    shutil.rmtree(folder / "m2", ignore_errors=True)
    return MavenContext(
        repo_cache=folder / "m2",
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=_DOWNLOAD_TIMEOUT_S,
    )


def keep(jars: Iterable[Path], folder: Path) -> None:
    """Move sound copies of `jars` into `folder` and drop what resolving them left there."""
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            # jgo only warns about a wrong checksum; reading every entry finds a damaged one.
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{jar.name} is damaged at {damaged}")
        shutil.copyfile(jar, folder / jar.name)
    for leftover in ("m2", "jgo"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
