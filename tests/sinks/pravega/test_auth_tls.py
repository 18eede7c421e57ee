"""A cluster with TLS and users: who may write, and what happens when a token expires."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from tests.sinks.pravega.conftest import Place, make_place
from tests.support.pravega_server import PASSWORD, USER, PravegaServer, run_java, why_not
from tests.support.sink_place import ROUND
from twopc import Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import OperatorRequired, RoundAborted
from twopc_pravega.segments import Appender

TOKEN_S = 8
"""How long a token is valid. Segment stores then close its connections."""

HASH = """
public class Hash { public static void main(String[] a) throws Exception {
  System.out.println(io.pravega.shared.security.crypto.StrongPasswordProcessor.builder().build().encryptPassword(a[0]));
  System.exit(0); } }
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PravegaServer]:
    if why := why_not():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("secured")
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1", "localhost")
    ca.cert_pem.write_to_path(folder / "ca.pem")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (folder / "password").write_text(PASSWORD)
    bundle = pkcs12.serialize_key_and_certificates(
        b"server",
        key,  # type: ignore[arg-type]  # it is one of these
        load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()),
        None,
        BestAvailableEncryption(PASSWORD.encode()),
    )
    (folder / "keys.jks").write_bytes(bundle)  # Java reads either format
    accounts = folder / "accounts"
    signing_key = "a key of the controller and the segment store"
    tls: dict[str, Any] = {
        "security.tls.enable": "true",
        "security.tls.server.certificate.location": folder / "cert.pem",
        "security.tls.server.privateKey.location": folder / "key.pem",
        "security.tls.server.keyStore.location": folder / "keys.jks",
        "security.tls.server.keyStore.pwd.location": folder / "password",
    }
    server = PravegaServer(
        controller={
            **{f"controller.{name}": value for name, value in tls.items()},
            "controller.security.tls.trustStore.location": str(folder / "ca.pem"),
            "controller.segmentstore.connect.channel.tls": "true",
            "controller.security.auth.enable": "true",
            "controller.security.pwdAuthHandler.accountsDb.location": str(accounts),
            "controller.security.auth.delegationToken.signingKey.basis": signing_key,
            "controller.security.auth.delegationToken.ttl.seconds": TOKEN_S,
            # the controller is also a client of its own streams
            "pravega.client.auth.loadDynamic": "false",
            "pravega.client.auth.method": "Basic",
            "pravega.client.auth.token": _basic(),
        },
        store={
            **{f"pravegaservice.{name}": value for name, value in tls.items()},
            "autoScale.controller.connect.security.tls.enable": "true",
            "autoScale.controller.connect.security.tls.truststore.location": str(folder / "ca.pem"),
            "autoScale.controller.connect.security.auth.enable": "true",
            "autoScale.security.auth.token.signingKey.basis": signing_key,
            "pravega.client.auth.loadDynamic": "false",
            "pravega.client.auth.method": "Basic",
            "pravega.client.auth.token": _basic(),
        },
        certificate=folder / "ca.pem",
        has_users=True,
    )
    hashed = run_java(server, "Hash", HASH, PASSWORD).strip()
    rights = {USER: "prn::*,READ_UPDATE", "reader": "prn::*,READ"}
    accounts.write_text("".join(f"{user}:{hashed}:{right};\n" for user, right in rights.items()))
    with server:
        yield server


def _basic() -> str:
    import base64

    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@pytest.fixture
def place(secured: PravegaServer) -> Place:
    return make_place(secured)


def test_a_user_who_may_write_commits_over_tls(place: Place) -> None:
    committable = place.pre_commit(["a", "b"])
    sink = place.sink()
    assert [found.transaction_id for found in sink.recover()] == [committable.transaction_id]
    sink.seal([committable], 0.0)
    sink.commit(committable)
    sink.complete(0, [committable])
    assert sorted(place.values()) == ["a", "b"]
    assert {check.result for check in sink.check()} == {CheckStatus.PASSED}


@pytest.mark.parametrize("other", [{"password": "wrong"}, {"username": "nobody"}, {"username": "reader"}])
def test_a_user_who_may_not_needs_an_operator_to_commit_and_aborts_the_round_of_a_task(
    other: dict[str, str], place: Place
) -> None:
    committable = place.pre_commit(["a"])
    sink = place.unbound(**other)
    sink.bind("orders", "log")
    with pytest.raises(OperatorRequired, match="Pravega refuses"):
        sink.commit(committable)
    with pytest.raises(RoundAborted, match="'username' and 'password'"):
        sink.begin(sink.transactional_ids.allocate(Round(1, 1), partition=0))
    place.sink().commit(committable)
    assert place.values() == ["a"]


def test_a_task_that_writes_for_longer_than_its_token_is_valid_goes_on_with_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, renew = [], Appender.renew

    def noted(appender: Appender, token: str) -> None:
        renewed.append(token)
        renew(appender, token)

    monkeypatch.setattr(Appender, "renew", noted)
    values: list[str] = []
    ends = time.monotonic() + 2 * TOKEN_S
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        while time.monotonic() < ends:
            values += [f"{len(values)}", f"{len(values) + 1}"]
            participant.write("orders", pa.record_batch({"value": values[-2:], "key": ["key", "Grüße 🐎"]}))
            time.sleep(0.2)
        committable = participant.pre_commit()["orders"]
    place.sink().commit(committable)
    assert sorted(place.values()) == sorted(values)
    assert len({*renewed}) >= 3


def test_a_certificate_that_is_not_trusted_is_never_taken(place: Place, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    sink = place.unbound(ca_file=str(tmp_path / "other.pem"))
    sink.bind("orders", "log")
    with pytest.raises(OperatorRequired, match="CERTIFICATE_VERIFY_FAILED"):
        sink.open()
