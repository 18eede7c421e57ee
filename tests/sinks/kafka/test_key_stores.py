"""Certificates and keys as others write them reach both clients, or are refused by the option's name."""

import contextlib
import functools
import logging
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from twopc.errors import ConfigurationError
from twopc_kafka.key_stores import TlsContext
from twopc_kafka.options import parse_options

PASSWORD, OTHER = "hunter2-opens-the-store", "hunter2-opens-the-key"  # what must not be seen anywhere

ROOT = trustme.CA()
CLIENTS = ROOT.create_child_ca()
SERVER = ROOT.issue_cert("127.0.0.1")


@dataclass(frozen=True)
class Identity:
    """A client, whose certificate the broker accepts by way of another one."""

    issued: trustme.LeafCert

    @property
    def key(self) -> Any:
        return serialization.load_pem_private_key(self.issued.private_key_pem.bytes(), None)

    @property
    def chain(self) -> list[x509.Certificate]:
        return [x509.load_pem_x509_certificate(part.bytes()) for part in self.issued.cert_chain_pems]

    @property
    def certificates(self) -> str:
        return "".join(part.bytes().decode() for part in self.issued.cert_chain_pems)

    def key_as(self, form: PrivateFormat, password: str | None = None) -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return str(self.key.private_bytes(Encoding.PEM, form, encryption).decode())

    def store(self, password: str = PASSWORD, key: bool = True) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        if key:
            return pkcs12.serialize_key_and_certificates(b"etl", self.key, self.chain[0], self.chain[1:], encryption)
        return pkcs12.serialize_key_and_certificates(None, None, None, self.chain, encryption)


CLIENT = Identity(CLIENTS.issue_cert("granted@example.org", common_name="granted"))
AUTHORITY = ROOT.cert_pem.bytes().decode()
PKCS8, OPENSSL = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL


def options(**given: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): str(value) for name, value in given.items()}
    return {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "writer": "librdkafka", **named}


def connected_as(given: dict[str, Any]) -> str:
    """Whom a server that demands certificates sees, when kafka-python's context connects. librdkafka reads its options
    when a producer is made, so it would refuse them."""
    parsed = parse_options(given)
    tls = {name: value for name, value in parsed.properties.items() if name.startswith(("ssl.", "security."))}
    confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", **tls}, logger=logging.getLogger("unheard"))
    return seen_of(parsed.control["ssl_context"])


def seen_of(client: TlsContext) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    SERVER.configure_cert(context)
    ROOT.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as accepted:
                peer: Any = accepted.getpeercert()
                seen.extend(value for part in peer["subject"] for name, value in part if name == "commonName")

        server = threading.Thread(target=serve)
        server.start()
        connection = socket.create_connection(listening.getsockname())
        with contextlib.suppress(OSError), client.wrap_socket(connection, server_hostname="127.0.0.1") as secured:
            secured.recv(1)
        server.join()
    return "".join(seen)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "backslash n": lambda text: text.replace("\n", "\\n"),
    "text before": lambda text: f"Bag Attributes\n  localKeyID: 54\nsubject=CN = granted\n{text}",
    "no last line end": str.rstrip,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_pem_text_reaches_both_clients_however_a_tool_has_spelled_it(spelling: str) -> None:
    spelled = SPELLINGS[spelling]
    given = options(
        ssl_certificate_pem=spelled(CLIENT.certificates),
        ssl_key_pem=spelled(CLIENT.key_as(PKCS8)),
        ssl_ca_pem=spelled(AUTHORITY),
    )
    assert connected_as(given) == "granted"


@pytest.mark.parametrize(("form", "password"), [(PKCS8, OTHER), (OPENSSL, OTHER), (OPENSSL, None)])
def test_an_encrypted_key_is_read_with_its_password(form: PrivateFormat, password: str | None) -> None:
    key = {"ssl_key_pem": CLIENT.key_as(form, password)} | ({"ssl_key_password": password} if password else {})
    given = options(ssl_certificate_pem=CLIENT.certificates, ssl_ca_pem=AUTHORITY, **key)
    assert connected_as(given) == "granted"


def test_a_store_is_read_by_its_content_where_the_sink_is_made_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, authority = tmp_path / "store.jks", tmp_path / "authority.pem"  # PKCS#12, whatever its name
    store.write_bytes(CLIENT.store())
    authority.write_text(AUTHORITY)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    given = options(ssl_keystore_location=store, ssl_keystore_password=PASSWORD, ssl_ca_location=authority)
    assert connected_as(given) == "granted"
    parsed = parse_options(given)
    store.unlink()
    assert "ssl_context" in parsed.control
    assert not [name for name in parsed.properties if "store" in name]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert "PRIVATE KEY" not in repr(parsed)


def test_a_store_of_trusted_certificates_is_a_trust_store(tmp_path: Path) -> None:
    store = tmp_path / "trust.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(
        None, None, None, [x509.load_pem_x509_certificate(AUTHORITY.encode())],
        BestAvailableEncryption(PASSWORD.encode()),
    ))  # fmt: skip
    given = options(
        ssl_truststore_location=store,
        ssl_truststore_password=PASSWORD,
        ssl_certificate_pem=CLIENT.certificates,
        ssl_key_pem=CLIENT.key_as(PKCS8),
    )
    assert connected_as(given) == "granted"


@pytest.mark.parametrize(
    ("content", "more", "told"),
    [
        (CLIENT.store(key=False), {}, r"no private key, only trusted certificates.*'ssl\.truststore\.location'"),
        (CLIENT.store(OTHER), {}, r"not a PKCS#12 or JKS store that 'ssl\.keystore\.password' opens"),
        (b"neither", {}, "not a PKCS#12 or JKS store"),
        (b"\xfe\xed\xfe\xed", {}, "not a PKCS#12 or JKS store"),
        (AUTHORITY.encode(), {}, r"is a file in PEM: set 'ssl\.certificate\.location'"),
        (CLIENT.store(), {"ssl_certificate_pem": "x"}, "exclude each other"),
        (CLIENT.store(), {"ssl_keystore_alias": "other"}, r"the private keys key: name one of them as 'ssl\.keystore"),
        (None, {}, r"'ssl\.keystore\.location' of the kafka sink must be a file that this process may read"),
    ],
    ids=["trust", "password", "contents", "magic", "pem", "both", "alias", "absent"],
)
def test_a_store_that_has_no_usable_key_is_refused_by_name(
    content: bytes | None, more: dict[str, str], told: str, tmp_path: Path
) -> None:
    store = tmp_path / "store.p12"
    if content is not None:
        store.write_bytes(content)
    given = options(ssl_keystore_location=store, ssl_keystore_password=PASSWORD, **more)
    with pytest.raises(ConfigurationError, match=told) as refused:
        parse_options(given)
    assert PASSWORD not in str(refused.value)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Options for a client's files in PEM."""
    texts = {"certificate": CLIENT.certificates, "key": CLIENT.key_as(PKCS8), "ca": AUTHORITY}
    found = {f"ssl_{name}_location": tmp_path / f"{name}.pem" for name in texts}
    for file, text in zip(found.values(), texts.values(), strict=True):
        file.write_text(text)
    return found


@pytest.mark.parametrize(("is_revoked", "seen"), [(False, "granted"), (True, "")])
def test_a_broker_whose_certificate_is_revoked_is_not_connected_to(
    is_revoked: bool, seen: str, files: dict[str, Path], tmp_path: Path
) -> None:
    authority, now = x509.load_pem_x509_certificate(AUTHORITY.encode()), datetime.now(tz=timezone.utc)
    begun = x509.CertificateRevocationListBuilder(authority.subject, now, now + timedelta(days=1))
    if is_revoked:
        served = x509.load_pem_x509_certificate(SERVER.cert_chain_pems[0].bytes())
        begun = begun.add_revoked_certificate(x509.RevokedCertificateBuilder(served.serial_number, now).build())
    key: Any = serialization.load_pem_private_key(ROOT.private_key_pem.bytes(), None)
    revoked = tmp_path / "revoked.pem"
    revoked.write_bytes(begun.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    assert connected_as(options(**files, ssl_crl_location=revoked)) == seen


def test_files_are_read_for_each_connection_and_a_half_of_a_renewal_is_a_lost_connection(
    files: dict[str, Path],
) -> None:
    context = parse_options(options(**files)).control["ssl_context"]
    renewed = Identity(CLIENTS.issue_cert("renewed@example.org", common_name="renewed"))
    files["ssl_certificate_location"].write_text(renewed.certificates)
    with pytest.raises(ConnectionError, match="KEY_VALUES_MISMATCH"):
        context.wrap_socket(None)
    files["ssl_key_location"].write_text(renewed.key_as(PKCS8))
    assert seen_of(context) == "renewed"


def test_the_host_is_checked_unless_the_options_say_otherwise(files: dict[str, Path]) -> None:
    for algorithm, is_checked in (("https", True), ("none", False)):
        given = options(**files) | {"ssl.endpoint.identification.algorithm": algorithm}
        assert parse_options(given).control["ssl_context"].made().check_hostname == is_checked


def test_an_encrypted_key_file_without_its_password_is_refused_and_not_asked_for_at_the_terminal(
    files: dict[str, Path],
) -> None:
    files["ssl_key_location"].write_text(CLIENT.key_as(PKCS8, OTHER))
    with pytest.raises(ConfigurationError, match=r"is 'ssl\.key\.password' right"):
        parse_options(options(**files))


STRANGER = Identity(ROOT.issue_cert("stranger@example.org"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ssl_key_pem": STRANGER.key_as(PKCS8)}, "KEY_VALUES_MISMATCH"),
        ({"ssl_key_pem": CLIENT.key_as(PKCS8, OTHER), "ssl_key_password": PASSWORD}, r"is 'ssl\.key\.password' right"),
        ({"ssl_key_pem": CLIENT.key_as(PKCS8, OTHER)}, r"is 'ssl\.key\.password' right"),
        ({"ssl_key_pem": "/run/secrets/tls.key"}, r"BEGIN PRIVATE KEY. For a file, use 'ssl\.key\.location'"),
        ({"ssl_key_pem": ""}, "BEGIN PRIVATE KEY"),
        ({}, r"needs its key: set 'ssl\.key\.pem'"),
        ({"ssl_keystore_password": PASSWORD}, r"'ssl\.keystore\.password' .* needs 'ssl\.keystore\.location'"),
        ({"ssl_keystore_type": "JKS"}, "use 'ssl.keystore.location' alone: its content shows the type"),
        ({"ssl_keystore_key": "x"}, r"use 'ssl\.key\.pem'"),
        ({"ssl_truststore_certificates": "x"}, r"use 'ssl\.ca\.pem'"),
        ({"sasl_jaas_config": PASSWORD}, r"use 'sasl\.username' and 'sasl\.password'"),
        ({"kafka.ssl.keystore.location": "x"}, r"Did you mean 'ssl\.keystore\.location'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_connected_to(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        parse_options(options(ssl_certificate_pem=CLIENT.certificates, **given))
    assert not [secret for secret in (PASSWORD, OTHER) if secret in str(refused.value)]


@pytest.fixture
def keytool(java_home: str) -> Callable[..., None]:
    def run(*arguments: object) -> None:
        tool = Path(java_home, "bin", "keytool")
        subprocess.run([str(tool), *map(str, arguments)], check=True, capture_output=True, timeout=60)

    return run


@pytest.mark.long
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_stores_of_javas_keytool_are_read_with_their_aliases_and_passwords(
    kind: str, keytool: Callable[..., None], tmp_path: Path
) -> None:
    source, store, trust = tmp_path / "source.p12", tmp_path / "store", tmp_path / "trust"
    source.write_bytes(CLIENT.store())
    into = ("-keystore", store, "-storepass", PASSWORD)
    key_password = OTHER if kind == "JKS" else PASSWORD  # in PKCS#12 they are the same
    keytool(
        *("-importkeystore", "-srckeystore", source, "-srcstorepass", PASSWORD, "-srcalias", "etl"),
        *("-destkeystore", store, "-deststorepass", PASSWORD, "-deststoretype", kind, "-destkeypass", key_password),
    )
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    authority = ("-importcert", "-noprompt", "-alias", "ca", "-file", tmp_path / "ca.pem", "-storetype", kind)
    keytool(*authority, "-keystore", trust, "-storepass", PASSWORD)
    as_client = functools.partial(
        options,
        ssl_keystore_location=store,
        ssl_keystore_password=PASSWORD,
        ssl_truststore_location=trust,
        ssl_truststore_password=PASSWORD,
    )
    if kind == "JKS":
        with pytest.raises(ConfigurationError, match=r"has another password: set 'ssl\.key\.password'"):
            parse_options(as_client())
    assert connected_as(as_client(ssl_key_password=key_password)) == "granted"

    keytool("-genkeypair", "-alias", "Second", "-keyalg", "RSA", "-dname", "CN=second", *into)
    with pytest.raises(ConfigurationError, match="the private keys etl, second: name one of them"):
        parse_options(as_client(ssl_key_password=key_password))
    assert connected_as(as_client(ssl_key_password=key_password, ssl_keystore_alias="ETL")) == "granted"
    assert connected_as(as_client(ssl_keystore_alias="second")) == ""  # which the server does not trust

    with pytest.raises(ConfigurationError, match="no private key, only trusted certificates"):
        parse_options(options(ssl_keystore_location=trust, ssl_keystore_password=PASSWORD))
    with pytest.raises(ConfigurationError, match=r"'ssl\.truststore\.password' opens"):
        parse_options(options(ssl_truststore_location=trust, ssl_truststore_password=OTHER))
