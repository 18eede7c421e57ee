"""The errors of the development broker; every message says what to do.

`DevelopmentError`
 ├─ `JavaNotFound`        install a JDK
 ├─ `JarsNotAvailable`    check the network or the configured repositories
 │   └─ `SourceNotPublished`  use a version of Spark that has a Kafka source
 └─ `BrokerFailed`        the broker did not start (its log's tail is in the message) or refused a request
"""

from __future__ import annotations


class DevelopmentError(RuntimeError):
    """The development broker failed, or needs something that is missing."""


class JavaNotFound(DevelopmentError):
    """No recent enough Java runtime was found or could be downloaded."""


class JarsNotAvailable(DevelopmentError):
    """Jars could not be downloaded."""


class SourceNotPublished(JarsNotAvailable):
    """No Kafka source is published for this version of Spark."""


class BrokerFailed(DevelopmentError):
    """The broker died, did not answer in time, or refused a request."""
