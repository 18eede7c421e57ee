"""What can go wrong with the development broker; every message says what to do about it.

`DevelopmentError`
 ├─ `JavaNotFound`        install a JDK
 ├─ `JarsNotAvailable`    see to the network or the configured repositories
 │   └─ `SourceNotPublished`  take a Spark for which there is a Kafka source
 └─ `BrokerFailed`        the broker did not start (its log's tail is in the message) or refused a request
"""

from __future__ import annotations


class DevelopmentError(RuntimeError):
    """Something that the development broker needs is missing, or the broker itself failed."""


class JavaNotFound(DevelopmentError):
    """No Java runtime that is new enough was found, or could be fetched."""


class JarsNotAvailable(DevelopmentError):
    """Jars could not be downloaded."""


class SourceNotPublished(JarsNotAvailable):
    """No Kafka source is published for this version of Spark."""


class BrokerFailed(DevelopmentError):
    """The broker died, did not answer in time, or refused a request."""
