"""Certificates and keys in the usual formats: files, PEM text, and Java key stores (PKCS#12 and JKS).

Key stores are read once, by the process that creates the sink, and passed to both clients as PEM text, so executors do
not need the files. PEM files are read for each connection, because they may be renewed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twopc.errors import ConfigurationError

KEY_STORE, TRUST_STORE = "ssl.keystore.location", "ssl.truststore.location"
ALIAS = "ssl.keystore.alias"
CERTIFICATE, KEY, AUTHORITY = "ssl.certificate.pem", "ssl.key.pem", "ssl.ca.pem"
_KEY_STORE_PASSWORD, _TRUST_STORE_PASSWORD = "ssl.keystore.password", "ssl.truststore.password"  # names
_KEY_PASSWORD = "ssl.key.password"  # noqa: S105  # its name

_STORES = (KEY_STORE, _KEY_STORE_PASSWORD, ALIAS, TRUST_STORE, _TRUST_STORE_PASSWORD)
_PEM = (CERTIFICATE, KEY, AUTHORITY)
_FILES = ("ssl.certificate.location", "ssl.key.location", "ssl.ca.location", "ssl.crl.location")
_OF_CONTEXT = (*_PEM, *_FILES, _KEY_PASSWORD, "ssl.endpoint.identification.algorithm")
OPTIONS = (*_STORES, *_OF_CONTEXT)

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class _Store:
    """The content of a key store.

    Attributes:
        keys: alias → a function that decrypts the key by its password, and the certificate chain, both in DER.
        trusted: the trusted certificates, in DER.
    """

    keys: Mapping[str, tuple[Callable[[str], bytes], list[bytes]]]
    trusted: list[bytes]


def as_pem(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties with key stores replaced by their content, and all PEM text as both clients read it.

    Raises:
        ConfigurationError: an option is wrong, or a store can't be read. The error names the option, and shows no
            secret.
    """
    read = {name: value for name, value in properties.items() if name not in (*_STORES, *_PEM)}
    for store, needing_it, replaced in (
        (KEY_STORE, (_KEY_STORE_PASSWORD, ALIAS), ("ssl.certificate.location", "ssl.key.location", CERTIFICATE, KEY)),
        (TRUST_STORE, (_TRUST_STORE_PASSWORD,), ("ssl.ca.location", AUTHORITY)),
    ):
        for name in properties:
            if name in needing_it and store not in properties:
                raise ConfigurationError(f"{name!r} of the kafka sink needs {store!r}", option=store)
            if name in replaced and store in properties:
                raise ConfigurationError(f"{store!r} and {name!r} of the kafka sink exclude each other", option=name)
    read |= {name: _pem_text(name, str(properties[name])) for name in _PEM if name in properties}
    if TRUST_STORE in properties:
        read[AUTHORITY] = _authority(properties)
    if KEY_STORE in properties:
        read[CERTIFICATE], read[KEY] = _identity(properties)
        read.pop(_KEY_PASSWORD, None)
    if {CERTIFICATE, "ssl.certificate.location"} & read.keys() and not {KEY, "ssl.key.location"} & read.keys():
        raise ConfigurationError(f"a certificate of the kafka sink needs its key: set {KEY!r}", option=KEY)
    if context := context_of(read):
        context.made()  # refuses a key that does not match its certificate
    return read


def context_of(properties: Mapping[str, Any]) -> TlsContext | None:
    """Return kafka-python's TLS context for checked properties, or None if kafka-python's default context will do."""
    given = tuple((name, str(properties[name])) for name in _OF_CONTEXT if name in properties)
    return TlsContext(given) if given else None


@dataclass(frozen=True)
class TlsContext:
    """Stands in for an ``ssl.SSLContext``, because the one that kafka-python makes reads neither PEM text nor a CRL."""

    properties: tuple[tuple[str, str], ...] = field(repr=False)

    def wrap_socket(self, connection: socket.socket, **options: Any) -> ssl.SSLSocket:
        """Begin TLS. Unusable files count as a lost connection, because a renewal may be under way."""
        try:
            context = self.made()
        except ConfigurationError as error:
            raise ConnectionError(str(error)) from error
        return context.wrap_socket(connection, **options)

    def made(self) -> ssl.SSLContext:
        """Return the context. Raises ConfigurationError if a file is not PEM, or key and certificate do not match."""
        given = dict(self.properties)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = given.get("ssl.endpoint.identification.algorithm", "").lower() != "none"
        wrong = "ssl.ca"
        try:
            if AUTHORITY in given or "ssl.ca.location" in given:
                context.load_verify_locations(given.get("ssl.ca.location"), cadata=given.get(AUTHORITY))
            else:
                context.load_default_certs()
            wrong = "ssl.crl"
            if "ssl.crl.location" in given:
                context.load_verify_locations(given["ssl.crl.location"])
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            wrong = "ssl.certificate"
            with _file(given.get(CERTIFICATE)) as certificate, _file(given.get(KEY)) as key:
                if certificate or "ssl.certificate.location" in given:
                    context.load_cert_chain(
                        certificate or given["ssl.certificate.location"],
                        key or given.get("ssl.key.location"),
                        lambda: given.get(_KEY_PASSWORD, ""),  # without it, OpenSSL would prompt
                    )
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "reason", None) or type(error).__name__
        else:
            return context
        raise ConfigurationError(
            f"the options {wrong + '...'!r} of the kafka sink can't be used ({reason}): are they in PEM, do key and"
            f" certificate belong together, and is {_KEY_PASSWORD!r} right?",
            option=_KEY_PASSWORD if wrong == "ssl.certificate" else wrong,
        )


@contextlib.contextmanager
def _file(content: str | None) -> Iterator[str | None]:
    """Yield the path of a file with this text, because OpenSSL reads keys only from files. Upholds: nobody else can
    read the text, even after this process is killed."""
    if content is None:
        yield None
    elif hasattr(os, "memfd_create"):
        with open(os.memfd_create("twopc"), "w+b") as memory:  # noqa: PTH123  # of a file without a path
            memory.write(content.encode())
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # with mode 0600
            file.write(content.encode())
            file.flush()
            yield file.name


def _pem_text(name: str, given: str) -> str:
    """Return the blocks of a PEM text. Some tools add text before a block, or write line ends as CRLF or as a backslash
    and an n."""
    text = re.sub(r"\\r|\r", "", given).replace("\\n", "\n")
    kind = "PRIVATE KEY" if name == KEY else "CERTIFICATE"
    blocks = [found[0] for found in _BLOCK.finditer(text) if found[1].endswith(kind)]
    if not blocks:
        raise ConfigurationError(
            f"{name!r} of the kafka sink must be PEM text with a block BEGIN {kind}. For a file, use"
            f" {name.replace('.pem', '.location')!r}.",
            option=name,
        )
    return "\n".join(blocks) + "\n"


# Key stores. ----------------------------------------------------------------------------------------------------------


def _authority(properties: Mapping[str, Any]) -> str:
    store = _open_store(properties, TRUST_STORE, _TRUST_STORE_PASSWORD)
    if not store.trusted:
        raise ConfigurationError(f"{TRUST_STORE!r} of the kafka sink has no trusted certificate", option=TRUST_STORE)
    return "".join(map(ssl.DER_cert_to_PEM_cert, store.trusted))


def _identity(properties: Mapping[str, Any]) -> tuple[str, str]:
    store = _open_store(properties, KEY_STORE, _KEY_STORE_PASSWORD)
    aliases = ", ".join(sorted(store.keys))
    if not store.keys:
        raise ConfigurationError(
            f"{KEY_STORE!r} of the kafka sink has no private key, only trusted certificates. Is it meant as"
            f" {TRUST_STORE!r}?",
            option=KEY_STORE,
        )
    alias = str(properties.get(ALIAS, "")).lower() or (aliases if len(store.keys) == 1 else "")
    if alias not in store.keys:
        raise ConfigurationError(
            f"{KEY_STORE!r} of the kafka sink has the private keys {aliases}: name one of them as {ALIAS!r}",
            option=ALIAS,
        )
    read_key, chain = store.keys[alias]
    passwords = (str(properties.get(name, "")) for name in (_KEY_PASSWORD, _KEY_STORE_PASSWORD) if name in properties)
    for password in passwords:
        with contextlib.suppress(ValueError):
            key = ssl.DER_cert_to_PEM_cert(read_key(password)).replace("CERTIFICATE", "PRIVATE KEY")
            return "".join(map(ssl.DER_cert_to_PEM_cert, chain)), key
    raise ConfigurationError(
        f"the private key {alias!r} in {KEY_STORE!r} of the kafka sink has another password: set {_KEY_PASSWORD!r}",
        option=_KEY_PASSWORD,
    )


def _open_store(properties: Mapping[str, Any], location: str, password: str) -> _Store:
    content = Path(str(properties[location])).read_bytes()
    secret = str(properties.get(password, ""))
    with contextlib.suppress(ValueError):
        if content.startswith(_JKS_MAGIC):
            return _jks(content, secret)
        if content.lstrip().startswith(b"-----BEGIN"):
            raise ConfigurationError(
                f"{location!r} of the kafka sink is a file in PEM: set 'ssl.certificate.location' and"
                " 'ssl.key.location', or 'ssl.ca.location', instead",
                option=location,
            )
        return _pkcs12(content, secret)
    raise ConfigurationError(
        f"{location!r} of the kafka sink is not a PKCS#12 or JKS store that {password!r} opens", option=password
    )


def _pkcs12(content: bytes, password: str) -> _Store:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_der_private_key,
            pkcs12,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"a key store needs the extra: pip install 'twopc-kafka[keystore]' ({error})", option=KEY_STORE
        ) from error
    found = pkcs12.load_pkcs12(content, password.encode() or None)
    certificates = [each.certificate for each in (found.cert, *found.additional_certs) if each]
    by_subject = {each.subject: each for each in certificates}

    def chain(leaf: Any) -> list[bytes]:
        found = [leaf]
        while (issuer := by_subject.get(found[-1].issuer)) and issuer not in found:
            found.append(issuer)
        return [each.public_bytes(Encoding.DER) for each in found]

    def entry(key: Any) -> tuple[Callable[[str], bytes], list[bytes]]:
        [leaf] = [each for each in certificates if each.public_key() == key.public_key()]
        der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return (lambda _: der), chain(leaf)

    if found.key is None:
        return _Store({}, [each.public_bytes(Encoding.DER) for each in certificates])
    several = {
        alias: entry(load_der_private_key(encrypted, password.encode())) for alias, encrypted in _keys_in(content)
    }
    return _Store(several if len(several) > 1 else {"key": entry(found.key)}, [])


_KEY_BAG = bytes.fromhex("060b2a864886f70d010c0a0102")  # the OID of pkcs8ShroudedKeyBag (RFC 7292)
_NAME = re.compile(re.escape(bytes.fromhex("06092a864886f70d010914")) + rb"1.\x1e(.)", re.DOTALL)  # the friendlyName


def _keys_in(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the alias and the encrypted bytes of each private key in a PKCS#12 store. ``cryptography`` returns only the
    first key. Bags of keys, unlike bags of certificates, are not encrypted as a whole."""
    bags = content.split(_KEY_BAG)[1:]
    for bag in bags:
        encrypted, attributes = _field(bag)
        if name := _NAME.search(bag, attributes):
            yield bag[name.end() : name.end() + name[1][0]].decode("utf-16-be").lower(), encrypted


_JKS_MAGIC = bytes.fromhex("feedfeed")
_JKS_SALT = b"Mighty Aphrodite"  # salts the checksum: sun.security.provider.JavaKeyStore
_SHA1_BYTES = 20


def _jks(content: bytes, password: str) -> _Store:
    """Read the older of Java's two formats. Source: OpenJDK's JavaKeyStore.java and KeyProtector.java.

    Raises:
        ValueError: the store is damaged, or the password is wrong.
    """
    body, checksum = content[:-_SHA1_BYTES], content[-_SHA1_BYTES:]
    in_java = password.encode("utf-16-be")
    if password and hashlib.sha1(in_java + _JKS_SALT + body).digest() != checksum:  # noqa: S324  # the format's own
        raise ValueError
    stream = io.BytesIO(body[len(_JKS_MAGIC) :])

    def number(form: str) -> int:
        (value,) = struct.unpack(form, stream.read(struct.calcsize(form)))
        return int(value)

    def data(form: str) -> bytes:
        return stream.read(number(form))

    def certificate() -> bytes:
        data(">H")  # its type, X.509
        return data(">I")

    keys: dict[str, tuple[Callable[[str], bytes], list[bytes]]] = {}
    trusted = []
    try:
        _version, entries = number(">I"), number(">I")
        for _ in range(entries):
            tag, alias, _created = number(">I"), data(">H").decode(), number(">Q")
            if tag == 1:
                protected = data(">I")
                keys[alias] = functools.partial(_decrypt, protected), [certificate() for _ in range(number(">I"))]
            else:
                trusted.append(certificate())
    except struct.error:
        raise ValueError from None
    return _Store(keys, trusted)


def _decrypt(protected: bytes, password: str) -> bytes:
    """Decrypt a key of a JKS store, which is XORed with a chain of SHA-1 digests that starts from a salt."""
    fields, _ = _field(protected)  # an EncryptedPrivateKeyInfo: the algorithm, then the octets
    _, end = _field(fields)
    octets, _ = _field(fields[end:])
    salt, hidden, checksum = octets[:_SHA1_BYTES], octets[_SHA1_BYTES:-_SHA1_BYTES], octets[-_SHA1_BYTES:]
    in_java, stream = password.encode("utf-16-be"), b""
    while len(stream) < len(hidden):
        salt = hashlib.sha1(in_java + salt).digest()  # noqa: S324  # the format's own
        stream += salt
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if hashlib.sha1(in_java + key).digest() != checksum:  # noqa: S324  # the format's own
        raise ValueError
    return key


def _field(der: bytes) -> tuple[bytes, int]:
    """Return the content of the first DER field, and the offset of its end."""
    size = der[1] & 0x7F if der[1] & 0x80 else 0
    begin = 2 + size
    end = begin + (int.from_bytes(der[2:begin], "big") if size else der[1])
    return der[begin:end], end
