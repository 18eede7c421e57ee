"""Principals of a broker with access control: how they log in, and what they are granted."""

from pathlib import Path
from typing import Any

import trustme
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
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from twopc_kafka_broker import KafkaBroker

STORE_PASSWORD = "opens-the-store-hunter2"  # noqa: S105  # what must not be seen anywhere


def as_user(second_broker: Any, name: str, password: str | None = None) -> dict[str, str]:
    return {
        "bootstrap_servers": second_broker.sasl_servers,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": name,
        "sasl_password": password or second_broker.passwords[name],
    }


def over_tls(second_broker: Any, folder: Path, servers: str, mechanism: str, **login: str) -> dict[str, str]:
    authority = folder / "authority.pem"
    second_broker.authority.cert_pem.write_to_path(authority)
    sasl = {"security_protocol": "sasl_ssl", "sasl_mechanism": mechanism} if mechanism else {"security_protocol": "ssl"}
    return {"bootstrap_servers": servers, "ssl_ca_location": str(authority), **sasl, **login}


def by_token(second_broker: Any, folder: Path) -> dict[str, str]:
    return over_tls(
        *(second_broker, folder, second_broker.token_servers, "OAUTHBEARER"),
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="granted",
        sasl_oauthbearer_client_secret=second_broker.passwords["granted"],
        sasl_oauthbearer_token_endpoint_url=second_broker.issuer.url,
        sasl_oauthbearer_scope="produce",
        sasl_oauthbearer_extensions="tenant=sales,region=emea",
        https_ca_location=str(folder / "authority.pem"),
    )


def by_provider(second_broker: Any, folder: Path) -> dict[str, str]:
    return over_tls(
        *(second_broker, folder, second_broker.token_servers, "OAUTHBEARER"),
        sasl_token_provider="tests.sinks.kafka.issuer:Provider",  # noqa: S106  # its name
        sasl_token_client="granted",  # noqa: S106  # its name
        sasl_token_secret=second_broker.passwords["granted"],
        sasl_token_url=second_broker.issuer.url,
        sasl_token_authority=str(folder / "authority.pem"),
    )


def by_scram(second_broker: Any, folder: Path) -> dict[str, str]:
    login = {"sasl_username": "granted", "sasl_password": second_broker.passwords["granted"]}
    return over_tls(second_broker, folder, second_broker.scram_servers, "SCRAM-SHA-512", **login)


def by_certificate(second_broker: Any, folder: Path) -> dict[str, str]:
    login = certificate(second_broker.authority, folder)
    return over_tls(second_broker, folder, second_broker.mtls_servers, "", **login)


def certificate(authority: trustme.CA, folder: Path) -> dict[str, str]:
    issued = authority.issue_cert("granted@example.org", common_name="granted")
    issued.cert_chain_pems[0].write_to_path(folder / "client.pem")
    issued.private_key_pem.write_to_path(folder / "client.key")
    return {"ssl_certificate_location": str(folder / "client.pem"), "ssl_key_location": str(folder / "client.key")}


def by_store(second_broker: Any, folder: Path) -> dict[str, str]:
    """The same certificate in a key store, and the authority as text."""
    given = by_certificate(second_broker, folder)
    certificate, key = (Path(given.pop(f"ssl_{name}_location")).read_bytes() for name in ("certificate", "key"))
    store = pkcs12.serialize_key_and_certificates(
        b"etl",
        load_pem_private_key(key, None),  # type: ignore[arg-type]  # of a kind that stores take
        load_pem_x509_certificate(certificate),
        None,
        BestAvailableEncryption(STORE_PASSWORD.encode()),
    )
    (folder / "store.jks").write_bytes(store)
    authority = Path(given.pop("ssl_ca_location")).read_text()
    store_options = {"ssl_keystore_location": str(folder / "store.jks"), "ssl_keystore_password": STORE_PASSWORD}
    return given | store_options | {"ssl_ca_pem": authority}


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
    admin.alter_user_scram_credentials([user])[name].result(timeout=60)
