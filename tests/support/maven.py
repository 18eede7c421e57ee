"""Jars of servers from Maven repositories, kept in the development broker's cache."""

import tarfile
from pathlib import Path

from twopc_kafka_broker.jars import keep, kept, maven


def maven_jar(name: str, group: str, artifact: str, version: str, classifier: str = "") -> Path:
    """Return a jar without its dependencies, such as a server that bundles them. Cached as ``name``.

    Raises:
        JarsNotAvailable: it could not be downloaded.
    """

    def download(folder: Path) -> None:
        component = maven(folder).project(group, artifact).at_version(version)
        keep([component.artifact(classifier=classifier).resolve()], folder)

    [jar] = kept(name, download)
    return jar


def maven_archive(name: str, group: str, artifact: str, version: str, classifier: str = "") -> tuple[Path, ...]:
    """Return the jars of a server that is published as a tar archive, in one folder. Cached as ``name``.

    Raises:
        JarsNotAvailable: it could not be downloaded.
    """

    def download(folder: Path) -> None:
        component = maven(folder).project(group, artifact).at_version(version)
        try:
            with tarfile.open(component.artifact(classifier=classifier, packaging="tar.gz").resolve()) as archive:
                for member in archive:
                    if member.name.endswith(".jar") and member.isfile():
                        member.name = member.name.rpartition("/")[2]
                        archive.extract(member, folder, filter="data")
        except tarfile.TarError as error:
            raise OSError(f"{artifact} is damaged: {error}") from error
        keep([], folder)

    return kept(name, download)
