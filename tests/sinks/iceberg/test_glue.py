"""AWS Glue as a catalog: moto's, behind a proxy that compares versions as AWS documents it. Nothing here ran on AWS."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as boto
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from tests.sinks.iceberg.conftest import Place, few
from tests.sinks.iceberg.test_contract import SCHEMA, SPEC
from tests.sinks.iceberg.test_contract import TestAppend as Append
from tests.support.between import nothing, once
from tests.support.http_proxy import Answer, HttpProxy, Lost, Request
from tests.support.loop import Job
from tests.support.once_per_run import once_per_run
from tests.support.pages import ROOT
from tests.support.s3_server import S3Server
from twopc import Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc_iceberg import IcebergSink
from twopc_iceberg.glue import _meaning
from twopc_iceberg.outcomes import CatalogAnswer, answer

UPDATE = "UpdateTable"

KEYS = {"glue.access-key-id": "AKIAHUNTER2", "glue.secret-access-key": "hunter2-secret", "glue.region": "eu-west-1"}


def error(code: str, status: int = 400) -> Answer:
    body = json.dumps({"__type": code, "Message": "as the test asked"}).encode()
    return Answer(status, body, (("Content-Type", "application/x-amz-json-1.1"),))


class Glue(HttpProxy):
    """Compares ``VersionId``, which moto ignores. The target of a request is the name of the call.

    Attributes:
        before, after: called before and after each update is passed on.
        at: the call before which ``before`` is called.
    """

    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        self.before: Callable[[], object] = nothing
        self.after: Callable[[], object] = nothing
        self.at = UPDATE

    def _pass_on(self, request: Request) -> Answer | None:
        return super()._pass_on(replace(request, target=request.headers["X-Amz-Target"].rpartition(".")[2]))

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        call, request = request.target, replace(request, target="/")
        if call == self.at:
            self.before()
        if call != UPDATE:
            return super()._forward(request, dropped)
        wanted = json.loads(request.body)
        names = {"DatabaseName": wanted["DatabaseName"], "Name": wanted["TableInput"]["Name"]}
        look = {**request.headers, "X-Amz-Target": "AWSGlue.GetTable"}
        known = super()._forward(
            replace(request, headers=look, body=json.dumps(names).encode()), dropped | {"content-length"}
        )
        if json.loads(known.body)["Table"]["VersionId"] != wanted["VersionId"]:
            return error("ConcurrentModificationException")
        found = super()._forward(request, dropped)
        self.after()
        return found


@pytest.fixture(scope="module")
def moto() -> S3Server:
    server: S3Server = once_per_run("s3")
    return server


@pytest.fixture(scope="module")
def direct(moto: S3Server) -> Iterator[Glue]:
    """What other programs go through: nothing is disturbed."""
    with Glue(moto.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[Glue]:
    with Glue(moto.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def glue(direct: Glue, tmp_path: Path) -> Iterator[Place]:
    of_glue = {"type": "glue", "glue.endpoint": direct.url, "warehouse": f"file://{tmp_path}", **KEYS}
    place = Place(of_glue, name=f"db.orders_{uuid.uuid4().hex}", deletes="position")
    place.create()
    yield place
    place.catalog().drop_table(place.name)


def through(place: Place, proxy: Glue, log_id: str = "log", **options: str) -> IcebergSink:
    """A sink whose client repeats nothing: that may take seconds."""
    return place.sink(log_id, **{"catalog.glue.endpoint": proxy.url, "catalog.glue.max-retries": "0", **options})


@pytest.mark.long
class TestOnGlue(Append):
    @pytest.fixture(autouse=True)
    def _place(self, glue: Place) -> None:
        self.place = glue
        glue.create(SCHEMA, SPEC)


# Two committers, and lost answers. ------------------------------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize("retries", few(["0"], "2"))
def test_requests_and_answers_that_are_lost_neither_lose_nor_double_a_record(
    retries: str, glue: Place, proxy: Glue
) -> None:
    """The first update of a table is an empty snapshot. AWS's client takes the refusal of its own repeat for a
    conflict."""
    sink = through(glue, proxy, **{"catalog.glue.max-retries": retries})
    for batch_id, lost in enumerate([Lost.REPLY, Lost.REQUEST, Lost.REPLY]):
        batch = glue.decided([f"{batch_id}"], round=Round(1, batch_id))
        proxy.disturb_next("POST", lost, UPDATE)
        if lost is Lost.REQUEST and retries == "0":
            with pytest.raises(Retriable, match="no answer"):
                sink.commit_batch(batch_id, batch)
        sink.commit_batch(batch_id, batch)
        assert proxy.is_done
    assert glue.values() == ["0", "1", "2"]
    assert glue.appends() == 3


@pytest.mark.variants
@pytest.mark.parametrize(("log_id", "at"), [("log2", UPDATE), ("log", UPDATE), ("log2", "GetDatabase")])
def test_a_commit_between_the_look_and_the_update_of_another_is_not_overwritten(
    log_id: str, at: str, glue: Place, proxy: Glue
) -> None:
    """By another driver of the same query, or by another query. pyiceberg looks at the database in between."""
    one, other = through(glue, proxy), glue.sink(log_id)
    theirs = glue.decided(["b"], sink=other)
    ours = theirs if log_id == "log" else glue.decided(["a"])
    proxy.at, proxy.before = at, once(lambda: other.commit_batch(0, theirs))
    one.commit_batch(0, ours)
    one.commit_batch(1, glue.decided(["c"], round=Round(1, 1)))
    assert glue.values() == ([] if log_id == "log" else ["a"]) + ["b", "c"]


@pytest.mark.long
@pytest.mark.parametrize("version", ["3", "2"])
def test_records_replace_rows_by_a_key(version: str, glue: Place) -> None:
    place = replace(glue, version=version)
    place.create()
    for batch_id, values in enumerate((["a", "b"], ["b", "c"])):
        place.run(batch_id, values, sink=place.sink(upsert_by="value"))
    assert place.values() == ["a", "b", "c"]


def test_a_glue_that_ignores_versions_is_refused_and_doctor_names_it(glue: Place, moto: S3Server) -> None:
    at_moto = replace(glue, properties={**glue.properties, "glue.endpoint": moto.endpoint_url})
    with pytest.raises(ConfigurationError, match="accepted a commit that another one excludes"):
        at_moto.sink()
    [verdict] = [each for each in at_moto.bound().check() if each.check == "requirements of commits in the catalog"]
    assert verdict.result is CheckStatus.FAILED


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_at_any_update_neither_loses_nor_doubles_a_record(
    glue: Place, proxy: Glue, tmp_path: Path
) -> None:
    place = replace(glue, properties={**glue.properties, "glue.endpoint": proxy.url})
    job = Job(str(tmp_path / "job"), {"orders": ("iceberg", place.options)}, batches=30, runs_again=True)
    (tmp_path / "job").mkdir()
    kills, is_ended = 0, False
    while not is_ended:
        driver = subprocess.Popen([sys.executable, "-m", "tests.support.loop", json.dumps(asdict(job))], cwd=ROOT)
        due = [nothing] * (kills // 2) + [driver.kill]  # the first update is the probe of a start
        at_update = iter(due)
        proxy.before = proxy.after = nothing
        setattr(proxy, "after" if kills % 2 else "before", lambda calls=at_update: next(calls, nothing)())
        is_ended = driver.wait(120) == 0
        kills += not is_ended
    assert kills > 8
    assert glue.values() == sorted(job.all_values())
    assert glue.appends() == job.batches
    assert list(glue.sink("log").recover()) == []


# What Glue does not take. ---------------------------------------------------------------------------------------------


def test_an_update_archives_no_version_and_has_comments_that_glue_takes(glue: Place, proxy: Glue) -> None:
    glue.create(Schema(NestedField(1, "value", StringType(), doc="two\nlines " + 300 * "x")))
    through(glue, proxy).commit_batch(0, glue.decided(["a"]))
    update = json.loads(proxy.sent("POST", UPDATE)[-1].body)
    [column] = update["TableInput"]["StorageDescriptor"]["Columns"]
    assert column["Comment"] == f"two lines {'x' * 300}"[:255]
    assert update["SkipArchive"] is True
    assert (glue.table().schema().fields[0].doc or "").count("x") == 300


def test_what_other_tools_have_set_in_glue_stays(glue: Place) -> None:
    catalog: Any = glue.catalog()
    _, name = glue.name.split(".")
    sink, batch = glue.sink(), glue.decided(["a"])
    known = catalog.glue.get_table(DatabaseName="db", Name=name)["Table"]
    [column] = known["StorageDescriptor"]["Columns"]
    theirs = {
        **{part: known[part] for part in ("Name", "TableType", "PartitionKeys") if part in known},
        "Description": "kept",
        "Owner": "kept",
        "Retention": 7,
        "Parameters": {**known["Parameters"], "of another tool": "kept"},
        "StorageDescriptor": {
            **known["StorageDescriptor"],
            "Columns": [{**column, "Comment": "kept", "Parameters": {**column["Parameters"], "theirs": "kept"}}],
            "InputFormat": "org.example.Iceberg",
            "SerdeInfo": {"SerializationLibrary": "org.example.Iceberg", "Parameters": {"theirs": "kept"}},
        },
    }
    catalog.glue.update_table(DatabaseName="db", TableInput=theirs, VersionId=known["VersionId"])
    sink.commit_batch(0, batch)
    found = catalog.glue.get_table(DatabaseName="db", Name=name)["Table"]
    assert found["Parameters"].pop("metadata_location") != theirs["Parameters"]["metadata_location"]
    assert found["Parameters"]["of another tool"] == "kept"
    assert {part: found[part] for part in theirs if part != "Parameters"} == {
        part: value for part, value in theirs.items() if part != "Parameters"
    }
    assert glue.values() == ["a"]


def test_a_table_of_s3_tables_is_refused(glue: Place, proxy: Glue) -> None:
    database = {"Database": {"Name": "db", "FederatedDatabase": {"ConnectionType": "aws:s3tables"}}}
    proxy.disturb_next("POST", Answer(200, json.dumps(database).encode()), "GetDatabase")
    with pytest.raises(ConfigurationError, match="is in S3 Tables"):
        through(glue, proxy)


def test_a_table_that_is_none_of_iceberg_is_as_good_as_none(glue: Place, proxy: Glue) -> None:
    catalog: Any = glue.catalog()
    name = f"plain_{uuid.uuid4().hex}"
    catalog.glue.create_table(DatabaseName="db", TableInput={"Name": name})
    with pytest.raises(ConfigurationError, match="no such table"):
        replace(glue, name=f"db.{name}").sink()


def test_what_aws_refuses_calls_an_operator_and_costs_no_batch(glue: Place, proxy: Glue) -> None:
    batch, sink = glue.decided(["a"]), through(glue, proxy)
    proxy.disturb_next("POST", error("AccessDeniedException"), UPDATE)
    with pytest.raises(OperatorRequired, match="AccessDeniedException") as refused:
        sink.commit_batch(0, batch)
    sink.commit_batch(0, batch)
    assert glue.values() == ["a"]
    assert "hunter2" not in f"{refused.value}{sink!r}{batch}".lower()


@pytest.mark.parametrize(
    ("raised", "means"),
    [
        *((code, CatalogAnswer.REPEAT) for code in ("ThrottlingException", "OperationTimeoutException")),
        *((code, CatalogAnswer.REFUSED) for code in ("AccessDeniedException", "ExpiredTokenException")),
        *((code, CatalogAnswer.UNKNOWN) for code in ("InvalidInputException", "ResourceNumberLimitExceededException")),
        *((status, CatalogAnswer.REPEAT) for status in (429, 500, 503)),
        (403, CatalogAnswer.REFUSED),
        (boto.EndpointConnectionError(endpoint_url="u"), CatalogAnswer.REPEAT),
        (boto.ReadTimeoutError(endpoint_url="u"), CatalogAnswer.REPEAT),
        (boto.SSLError(endpoint_url="u", error="CERTIFICATE_VERIFY_FAILED"), CatalogAnswer.REFUSED),
        (boto.NoCredentialsError(), CatalogAnswer.REFUSED),
        (boto.ParamValidationError(report="r"), CatalogAnswer.UNKNOWN),
    ],
    ids=str,
)
def test_an_error_of_aws_means_what_its_code_says(raised: Any, means: CatalogAnswer) -> None:
    if not isinstance(raised, boto.BotoCoreError):
        code, status = (raised, 400) if isinstance(raised, str) else ("Other", raised)
        response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raised = boto.ClientError(response, UPDATE)
    assert answer(_meaning(raised)) is means


@pytest.mark.variants
@pytest.mark.parametrize("option", [{"glue.max-retries": "many"}, {"glue.endpoint": "moto:5000"}])
def test_options_that_awss_client_does_not_take_are_refused_by_name(option: dict[str, str], glue: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"does not take the options 'catalog\.glue\.\*'"):
        replace(glue, properties={**glue.properties, **option}).sink()


def test_a_table_that_is_gone_is_not_created(glue: Place) -> None:
    with pytest.raises(ConfigurationError, match="no such table"):
        replace(glue, name="db.none").sink()
    with pytest.raises(NoSuchTableError):
        glue.catalog().load_table("db.none")


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("twopc_iceberg.glue", "pyiceberg.catalog.glue"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"'boto3': run pip install 'twopc-iceberg\[glue\]'"):
        replace(place, properties={"type": "glue"}).sink()
