"""Principals of a broker with access control: how they log in, and what they are granted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from twopc_kafka_broker import KafkaBroker


def as_user(second_broker: Any, name: str, password: str | None = None) -> dict[str, str]:
    return {
        "bootstrap_servers": second_broker.sasl_servers,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": name,
        "sasl_password": password or second_broker.passwords[name],
    }


def by_token(second_broker: Any, folder: Path) -> dict[str, str]:
    second_broker.authority.cert_pem.write_to_path(folder / "authority.pem")
    return {
        "bootstrap_servers": second_broker.token_servers,
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_method": "oidc",
        "sasl_oauthbearer_client_id": "granted",
        "sasl_oauthbearer_client_secret": second_broker.passwords["granted"],
        "sasl_oauthbearer_token_endpoint_url": second_broker.issuer.url,
        "sasl_oauthbearer_scope": "produce",
        "sasl_oauthbearer_extensions": "tenant=sales,region=emea",
        "ssl_ca_location": str(folder / "authority.pem"),
        "https_ca_location": str(folder / "authority.pem"),
    }


def allow(
    second_broker: Any,
    user: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    binding = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": second_broker.broker.bootstrap_servers})
    [granted] = admin.create_acls([binding]).values()
    granted.result(timeout=10)
    return binding


def grant(second_broker: Any, user: str, topic: str, prefix: str) -> None:
    """The rights that the README tells to grant, and no other."""
    allow(second_broker, user, AclOperation.WRITE, ResourceType.TOPIC, topic)
    ids = ResourceType.TRANSACTIONAL_ID, f"{prefix}.", ResourcePatternType.PREFIXED
    allow(second_broker, user, AclOperation.WRITE, *ids)


def scram_user(broker: KafkaBroker, name: str, password: str) -> None:
    """Give a user a password, or another one."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion(name, mechanism, password.encode())
    admin.alter_user_scram_credentials([user])[name].result(timeout=10)
