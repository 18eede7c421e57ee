"""The subjects of a schema registry: their schemas with all referenced schemas, and the registry's refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from twopc.errors import ConfigurationError, Retriable

_NOT_FOUND = 404
_TEMPORARY = {408, 429, 500, 502, 503, 504}
_WHY = {
    401: "the credentials are missing or wrong",
    403: "the credentials do not permit it",
    _NOT_FOUND: "it does not have the subject, or not this schema",
    409: "the schema is not compatible with those that the subject has",
    422: "the schema is not valid, or the subject is read-only",
}
_MOST_TEXT = 300  # characters of an error page

_RULE_LISTS = ("domain_rules", "migration_rules", "encoding_rules")
WRITING = frozenset({"WRITE", "WRITEREAD"})
_READING = frozenset({"READ", "WRITEREAD", "UPGRADE", "DOWNGRADE", "UPDOWN"})


@dataclass(frozen=True)
class Subject:
    """A subject, whose schemas are ``AVRO``, ``JSON`` or ``PROTOBUF``.

    Attributes:
        modes: the modes of the rules that Confluent's clients would apply to its records.
    """

    client: SchemaRegistryClient
    name: str
    schema_type: str
    modes: frozenset[str]

    @classmethod
    def to_read(cls, client: SchemaRegistryClient, names: str | Sequence[str], schema_type: str) -> list[Subject]:
        """Return the subjects of these names, for reading records."""
        return [cls(client, each, schema_type, _READING) for each in ([names] if isinstance(names, str) else names)]

    def chosen(self, given: str | Schema | None, made: Callable[[], str] | None = None) -> tuple[Schema, int | None]:
        """Return the given schema, else the subject's newest schema with its id, else the schema that ``made``
        returns."""
        if given is not None:
            return Schema(given, self.schema_type) if isinstance(given, str) else given, None
        # get_latest_version would return its first answer again.
        found = self._ask(self.client.get_version, "latest", absent=made)
        if made and found is made:
            return Schema(made(), self.schema_type), None
        return found.schema, int(found.schema_id)

    def id_of(self, schema: Schema, known: int | None, register: bool) -> int:
        """Return ``known`` if it is given, else the schema's id in the subject. With ``register``, register the schema
        first."""
        if known is not None:
            return known
        request = self.client.register_schema_full_response if register else self.client.lookup_schema
        return int(self._ask(request, schema).schema_id)

    def schemas(self) -> Iterator[tuple[int, Schema]]:
        """Yield the id and the schema of each version of the subject, including deleted versions."""
        for version in self._ask(self.client.get_versions, deleted=True):
            known = self.version(version)
            yield known.schema_id, known.schema

    def text(self, schema: Schema) -> str:
        """Return a schema's text. Refuse a schema of another format, or with rules that Spark would not apply."""
        if schema.schema_type != self.schema_type:
            raise ConfigurationError(
                f"the schema of subject {self.name!r} has the type {schema.schema_type}, not {self.schema_type}"
            )
        for rule in itertools.chain(*(getattr(schema.rule_set, each, None) or () for each in _RULE_LISTS)):
            if not rule.disabled and str(rule.mode) in self.modes:
                raise ConfigurationError(
                    f"subject {self.name!r} has the rule {rule.name!r}, which Spark does not apply"
                )
        return str(schema.schema_str)

    def referenced(self, schema: Schema) -> dict[str, str]:
        """Return the texts of all schemas that a schema refers to, directly or indirectly, by name. Each schema follows
        the schemas that it refers to."""
        found: dict[str, str] = {}
        references: Any = schema.references or ()
        for each in references:
            other = replace(self, name=each.subject)
            known = other.version(each.version).schema
            found = other.referenced(known) | {each.name: other.text(known)} | found
        return found

    def version(self, number: int) -> Any:
        """Return a version of the subject, even a deleted one."""
        return self._ask(self.client.get_version, number, deleted=True)

    def _ask(self, request: Callable[..., Any], *given: Any, absent: Any = None, **options: Any) -> Any:
        """Return the registry's answer, or ``absent`` for a 404. Raise a refusal as this project's error.

        An error quotes only the registry: the errors of the client's HTTP library show URLs, which may contain
        credentials.
        """
        try:
            answer = request(self.name, *given, **options)
        except SchemaRegistryError as error:
            status, text = int(error.http_status_code), str(error.error_message)[:_MOST_TEXT]
            if status == _NOT_FOUND and absent is not None:
                return absent
            if status in _TEMPORARY:
                raise Retriable(f"the schema registry answered {status} for subject {self.name!r}: {text}") from None
            raise self._refused(f"{_WHY.get(status, 'it refused the request')} ({status}: {text})") from None
        except Exception as error:  # noqa: BLE001  # only its type is shown
            names = [each.__name__ for each in type(error).__mro__]
            if "TransportError" in names:  # of httpx or httpx2
                raise Retriable(f"the schema registry did not answer for subject {self.name!r}: {names[0]}") from None
            wrong = f"its answer can't be read, or the client's URL or login is wrong ({names[0]})"
            raise self._refused(wrong) from None
        if answer is None or getattr(answer, "schema_id", 0) is None:
            raise self._refused("not a schema")
        return answer

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"the schema registry refused subject {self.name!r}: {why}")
