"""Spark with Iceberg's own runtime reads what the sink writes, and maintains the tables while the sink writes them."""

import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.sinks.iceberg.conftest import COMMIT, VALUE, Place
from tests.sinks.iceberg.test_readers import duckdb_reads
from tests.support import networks
from tests.support.environments import NotHere
from tests.support.http_proxy import Answer, HttpProxy, Request
from tests.support.iceberg_spark import IcebergSpark, SqlFailed, iceberg_environment
from tests.support.rest_catalog import ProxyIntoHost, RestCatalogServer
from twopc import Committable, Participant, Round
from twopc.errors import OperatorRequired, RoundAborted, TransactionLost

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(networks.why_not() is not None, reason=str(networks.why_not())),
]

TABLE = "lake.db.orders"

SCHEMA = Schema(
    NestedField(1, "value", StringType()),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "small", IntegerType()),
    NestedField(4, "whole", LongType()),
    NestedField(5, "single", FloatType()),
    NestedField(6, "fraction", DoubleType()),
    NestedField(7, "amount", DecimalType(9, 2)),
    NestedField(8, "large", DecimalType(38, 10)),
    NestedField(9, "day", DateType()),
    NestedField(10, "at", TimestamptzType()),
    NestedField(11, "local", TimestampType()),
    NestedField(12, "id", UUIDType()),
    NestedField(13, "raw", BinaryType()),
    NestedField(14, "code", FixedType(4)),
    NestedField(15, "tags", ListType(16, StringType(), element_required=False)),
    NestedField(17, "counts", MapType(18, StringType(), 19, LongType(), value_required=False)),
    NestedField(
        20,
        "place",
        StructType(
            NestedField(21, "city", StringType()),
            NestedField(22, "spot", StructType(NestedField(23, "x", DoubleType()), NestedField(24, "y", FloatType()))),
        ),
    ),
    NestedField(
        25,
        "visits",
        ListType(
            26,
            StructType(
                NestedField(27, "day", DateType()),
                NestedField(28, "notes", MapType(29, StringType(), 30, ListType(31, IntegerType()))),
            ),
            element_required=False,
        ),
    ),
)
"""Every type that Spark has, too. It has none for ``time``."""

_SPOT = pa.struct({"x": pa.float64(), "y": pa.float32()})
_VISIT = pa.struct({"day": pa.date32(), "notes": pa.map_(pa.string(), pa.list_(pa.int32()))})

NOON = datetime(2024, 2, 29, 12, 0, 0, 1)  # noqa: DTZ001  # a local time
EARLY = datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "value": (
        pa.string(),
        ["", "a", "null", "Grüße, 世界 🐎", "a/b=c %&", None, "zz" * 40, "\ud7ff" * 20, "\U0010ffff" * 20, "z" * 5000],
    ),
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int32(), [0, -(2**31), 2**31 - 1, None]),
    "whole": (pa.int64(), [-1, -(2**63), 2**63 - 1, None, 11]),
    "single": (pa.float32(), [0.5, -0.0, None, math.inf]),
    "fraction": (pa.float64(), [0.1, math.nan, -1e300, None, 0.0, -0.0]),
    "amount": (pa.decimal128(9, 2), [Decimal("0.10"), Decimal("-9999899.99"), None]),
    "large": (pa.decimal128(38, 10), [Decimal("9999999999999999999999999999.0000000001"), None]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1900, 1, 1), None, date(1969, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [each.replace(tzinfo=timezone.utc) for each in (NOON, EARLY)] + [None]),
    "local": (pa.timestamp("us"), [None, EARLY, NOON, datetime(1600, 1, 1)]),  # noqa: DTZ001
    "id": (pa.string(), ["f79c3e09-677c-4bbd-a479-3f349cb785e7", None, "00000000-0000-0000-0000-000000000000"]),
    "raw": (pa.binary(), [b"", b"\0\xff\x80", None]),
    "code": (pa.binary(4), [b"\0\0\0\0", b"\xff\xfe\0a", None]),
    "tags": (pa.list_(pa.string()), [[], ["a", None, ""], None]),
    "counts": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)], None]),
    "place": (
        pa.struct({"city": pa.string(), "spot": _SPOT}),
        [{"city": "Bern", "spot": {"x": 1.5, "y": None}}, {"city": None, "spot": None}, None],
    ),
    "visits": (pa.list_(_VISIT), [[{"day": date(2024, 1, 1), "notes": [("n", [1, 2])]}, None], [], None]),
}

ROWS = 24


def of_every_type() -> pa.RecordBatch:
    """Records in which each value meets others, and each is there."""
    return pa.record_batch(
        {
            name: pa.array([values[n % len(values)] for n in range(ROWS)], kind)
            for name, (kind, values) in VALUES.items()
        }
    )


def spec(*fields: tuple[int, Any]) -> PartitionSpec:
    made = (PartitionField(source, 1000 + n, transform, f"p{n}") for n, (source, transform) in enumerate(fields))
    return PartitionSpec(*made)


SPECS = {
    "whole": spec(),
    "buckets": spec(*((source, BucketTransform(3)) for source in (1, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14))),
    "times": spec((9, YearTransform()), (10, DayTransform()), (11, HourTransform())),
    "months": spec((9, MonthTransform()), (10, HourTransform()), (11, YearTransform()), (1, VoidTransform())),
    "truncated": spec(
        *((source, TruncateTransform(width)) for source, width in ((1, 3), (3, 16), (4, 16), (7, 50), (13, 2)))
    ),
    "identities": spec(*((source, IdentityTransform()) for source in (1, 2, 3, 4, 5, 6, 7, 9, 13))),
    "more identities": spec(*((source, IdentityTransform()) for source in (8, 10, 11, 12, 21))),
}


@pytest.fixture(scope="module")
def spark(direct: HttpProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergSpark]:
    try:
        environment = iceberg_environment()
    except NotHere as error:
        pytest.skip(str(error))
    catalog = {"type": "rest", "uri": direct.url, "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with IcebergSpark(environment, catalog, tmp_path_factory.mktemp("spark") / "log") as spark:
        yield spark


@pytest.fixture
def place(server: RestCatalogServer, direct: HttpProxy) -> Iterator[Place]:
    """A table of one column, ``value``, in the REST catalog."""
    place = Place({"uri": direct.url})
    create(place, server)
    yield place
    place.catalog().drop_table("db.orders")
    place.close()


def create(
    place: Place,
    server: RestCatalogServer,
    schema: Schema = VALUE,
    partitions: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    **properties: str,
) -> None:
    """Create the table anew, in a folder of its own."""
    place.create(schema, partitions, location=f"{server.warehouse}/{uuid.uuid4().hex}", properties=properties)


def write(place: Place, batch_id: int, *votes: Committable) -> None:
    """Decide and commit what tasks have pre-committed."""
    sink = place.sink()
    batch = sink.seal(votes, 0.0)
    sink.commit_batch(batch_id, batch)
    sink.complete(batch_id, batch)


def plain(value: Any) -> Any:
    """Return a value as all readers have it."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case datetime() if value.tzinfo is not None:
            return value.astimezone(timezone.utc).isoformat()
        case uuid.UUID():
            return str(value)
        case _:
            return value


def as_text(table: pa.Table, nulls_of: str = "") -> list[str]:
    """Return the records, in an order that does not depend on the reader. Nulls of a column ``nulls_of`` become empty
    lists."""
    rows = table.to_pylist()
    if nulls_of in table.column_names:
        rows = [{**row, nulls_of: row[nulls_of] or []} for row in rows]
    return sorted(repr(plain(row)) for row in rows)


def require_same(spark: IcebergSpark, place: Place, rows: int) -> list[str]:
    """All three readers see the same records. Return them."""
    of_spark = spark.table(f"SELECT * FROM {TABLE}")  # noqa: S608  # of the test
    seen = as_text(of_spark)
    assert seen == as_text(duckdb_reads(place))
    # pyiceberg 0.12 reads a list of structs that is null as an empty one, whoever has written it.
    assert as_text(of_spark, "visits") == as_text(place.table().scan().to_arrow(), "visits")
    assert len(seen) == rows
    counted = spark.sql(f"SELECT sum(record_count) AS rows FROM {TABLE}.files")  # noqa: S608  # of the test
    assert counted == [{"rows": rows}]
    return seen


@pytest.mark.parametrize("name", SPECS)
def test_spark_pyiceberg_and_duckdb_read_the_same_records_of_every_type(
    name: str, spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    create(place, server, SCHEMA, SPECS[name])
    records = of_every_type()
    place.run(0, records.slice(0, 10), records.slice(10, 7))
    place.run(1, records.slice(17))
    seen = require_same(spark, place, ROWS)
    assert seen == as_text(pa.Table.from_batches([records]))


@pytest.mark.parametrize("name", SPECS)
def test_spark_finds_each_record_by_each_of_its_values(
    name: str, spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    """Partitions and bounds of columns decide which files Spark opens."""
    create(place, server, SCHEMA, SPECS[name])
    records = of_every_type()
    place.run(0, *(records.slice(start, 4) for start in range(0, ROWS, 4)))
    wanted = {where: records.column(column).to_pylist().count(value) for column, value, where in predicates()}
    counts = ", ".join(f"(SELECT count(*) FROM {TABLE} WHERE {where}) AS c{n}" for n, where in enumerate(wanted))  # noqa: S608
    [found] = spark.sql(f"SELECT {counts}")
    assert dict(zip(wanted, found.values(), strict=True)) == wanted


def predicates() -> Iterator[tuple[str, Any, str]]:
    """Yield columns, values that some records have there, and SQL that asks for these records.

    Iceberg 1.12 for Java compares bounds of ``uuid`` as signed numbers, and does not find some of its own records.
    """
    for column, (kind, values) in VALUES.items():
        for value in values:
            if value is None:
                yield column, None, f"{column} IS NULL"
            elif column != "id" and (literal := _literal(value, kind)) is not None:
                yield column, value, f"{column} = {literal}"


_IN_SQL = {
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.decimal128(9, 2): "DECIMAL(9, 2)",
    pa.decimal128(38, 10): "DECIMAL(38, 10)",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """Return a value in SQL. None for parts within parts, and where equality in SQL is not that of Python."""
    if isinstance(value, float) and (math.isnan(value) or value == 0):
        return None
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return f"CAST('{value}' AS {_IN_SQL[kind]})" if kind in _IN_SQL else None


def test_spark_reads_merged_manifests_and_merges_those_of_the_sink(
    spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    create(place, server, SCHEMA, SPECS["truncated"], **{"commit.manifest.min-count-to-merge": "3"})
    records = of_every_type()
    for batch_id in range(8):
        place.run(batch_id, records.slice(3 * batch_id, 3))
    manifests = f"SELECT count(*) AS n FROM {TABLE}.manifests"  # noqa: S608  # of the test
    assert spark.sql(manifests)[0]["n"] < 8
    require_same(spark, place, ROWS)
    spark.sql("CALL lake.system.rewrite_manifests('db.orders')")
    place.run(8, records)
    require_same(spark, place, 2 * ROWS)


def test_spark_reads_batches_over_changes_of_columns_and_partitions_that_it_makes(
    spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    columns = [NestedField(1, "value", StringType()), NestedField(2, "n", IntegerType())]
    create(place, server, Schema(*columns, NestedField(3, "price", FloatType())), spec((1, BucketTransform(2))))
    changes = [
        ("ADD COLUMN note STRING", {}),
        ("ALTER COLUMN n TYPE BIGINT", {"n": pa.array([2**40, None])}),
        ("ADD PARTITION FIELD truncate(10, n)", {}),
        ("DROP PARTITION FIELD bucket(2, value)", {}),
        ("RENAME COLUMN note TO remark", {"remark": ["x", None]}),
        ("ADD COLUMN place STRUCT<city: STRING, spot: ARRAY<DOUBLE>>", {}),
        ("ADD COLUMN place.zip STRING FIRST", {"place": [{"zip": "1", "city": "B", "spot": [1.0]}, None]}),
        ("DROP COLUMN price", {}),
        ("REPLACE PARTITION FIELD n_trunc_10 WITH bucket(4, n)", {}),
    ]
    for batch_id, (change, new) in enumerate(changes):
        price = {} if "price" not in place.table().schema().column_names else {"price": pa.array([1.5, None], "float")}
        undecided = place.vote({"value": [f"u{batch_id}"], "n": pa.array([batch_id], "int32")}, Round(1, batch_id), 1)
        before = {"value": [f"b{batch_id}", None], "n": pa.array([batch_id, None], "int32"), **price}
        vote = place.vote(before, Round(1, batch_id))
        spark.sql(f"ALTER TABLE {TABLE} {change}")
        write(place, batch_id, vote, undecided)
        spark.sql(f"INSERT INTO {TABLE} (value, n) VALUES ('spark', {batch_id})")  # noqa: S608  # of the test
        after = {"value": [f"a{batch_id}", None], "n": pa.array([batch_id, None], "int32"), **new}
        place.run(len(changes) + batch_id, after) if batch_id == len(changes) - 1 else None
        require_same(spark, place, 4 * (batch_id + 1) + (2 if batch_id == len(changes) - 1 else 0))


def test_spark_audits_a_branch_and_publishes_it(spark: IcebergSpark, place: Place) -> None:
    place.run(0, ["old"])
    spark.sql(f"ALTER TABLE {TABLE} CREATE BRANCH audit")
    sink = place.sink(branch="audit")
    for batch_id in (1, 2):
        batch = sink.seal([place.vote([f"a{batch_id}"], Round(1, batch_id), sink=sink)], 0.0)
        sink.commit_batch(batch_id, batch)
    assert values(spark) == ["old"]
    assert values(spark, "FOR VERSION AS OF 'audit'") == ["a1", "a2", "old"]
    spark.sql("CALL lake.system.fast_forward('db.orders', 'main', 'audit')")
    assert values(spark) == ["a1", "a2", "old"]
    place.run(3, ["new"])
    assert values(spark) == ["a1", "a2", "new", "old"]
    assert values(spark, "FOR VERSION AS OF 'audit'") == ["a1", "a2", "old"]


def values(spark: IcebergSpark, version: str = "") -> list[str]:
    return sorted(row["value"] for row in spark.sql(f"SELECT value FROM {TABLE} {version}"))  # noqa: S608  # of the test


def test_spark_reads_no_table_with_a_column_of_time(
    spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    """As the README says: this reader has no such type."""
    create(place, server, Schema(NestedField(1, "t", TimeType())))
    place.run(0, {"t": pa.array([1], pa.time64("us"))})
    with pytest.raises(SqlFailed, match="time"):
        spark.sql(f"SELECT * FROM {TABLE}")  # noqa: S608  # of the test
    assert duckdb_reads(place).num_rows == 1


ACTIONS = {
    "rewrites data files": "CALL lake.system.rewrite_data_files("
    "table => 'db.orders', options => map('rewrite-all', 'true'))",
    "rewrites manifests": "CALL lake.system.rewrite_manifests('db.orders')",
    "expires snapshots": "CALL lake.system.expire_snapshots("
    "table => 'db.orders', older_than => TIMESTAMP'2100-01-01', retain_last => 1)",
    "removes orphan files": "CALL lake.system.remove_orphan_files('db.orders')",
    "appends": f"INSERT INTO {TABLE} VALUES ('spark')",  # noqa: S608  # of the test
    "deletes": f"DELETE FROM {TABLE} WHERE value = 'spark'",  # noqa: S608  # of the test
    "replaces partitions": f"INSERT OVERWRITE {TABLE} SELECT * FROM {TABLE}",  # noqa: S608  # of the test
}

MOMENTS = ("undecided", "decided", "on its way", "visible")
"""The state of a batch when Spark acts."""


def before_next_commit(proxy: ProxyIntoHost, act: Callable[[], object]) -> None:
    """Act when the next request to commit is on its way, and has not reached the catalog."""
    forward = proxy._forward

    def once(request: Request, dropped: frozenset[str]) -> Answer:
        if request.method == "POST" and COMMIT in request.target:
            proxy._forward = forward  # type: ignore[method-assign]
            act()
        return forward(request, dropped)

    proxy._forward = once  # type: ignore[method-assign]


@pytest.mark.parametrize("action", ACTIONS)
def test_each_batch_is_in_the_table_once_whatever_spark_does_meanwhile(
    action: str, spark: IcebergSpark, place: Place, proxy: ProxyIntoHost
) -> None:
    place.run(0, ["0a"], ["0b"])
    spark.sql(f"INSERT INTO {TABLE} VALUES ('spark')")  # noqa: S608  # of the test
    place.run(1, ["1a"], ["1b"])
    written = ["0a", "0b", "1a", "1b"]
    for batch_id, moment in enumerate(MOMENTS, 2):
        tasks = [[f"{batch_id}a"], [f"{batch_id}b"]]
        votes = [place.vote(each, Round(1, batch_id), number) for number, each in enumerate(tasks)]
        _act(spark, action, moment == "undecided")
        sink = place.sink(**{"catalog.uri": proxy.url})
        batch = sink.seal(votes, 0.0)
        _act(spark, action, moment == "decided")
        if moment == "on its way":
            before_next_commit(proxy, lambda: _act(spark, action, True))
        sink.commit_batch(batch_id, batch)
        _act(spark, action, moment == "visible")
        for again in (sink, place.sink()):
            again.commit_batch(batch_id, batch)
        sink.complete(batch_id, batch)
        written += [value for task in tasks for value in task]
        seen = [value for value in values(spark) if value != "spark"]
        assert seen == written, moment
        assert seen == [value for value in place.values() if value != "spark"]
    assert list(place.sink().recover()) == []


def _act(spark: IcebergSpark, action: str, is_due: bool) -> None:
    if is_due:
        spark.sql(ACTIONS[action])


def age(place: Place, days: int) -> None:
    """Make every file of the table older."""
    then = (datetime.now(timezone.utc) - timedelta(days=days)).timestamp()
    for path in place.folder.rglob("*"):
        os.utime(path, (then, then))


def test_orphan_files_that_spark_removes_are_never_those_of_a_visible_batch_or_notes(
    spark: IcebergSpark, place: Place
) -> None:
    place.run(0, ["0"])
    vote = place.vote(["1"], Round(1, 1))
    age(place, days=10)
    removed = spark.sql(ACTIONS["removes orphan files"])
    assert removed
    assert all(vote.transaction_id in row["orphan_file_location"] for row in removed)
    with pytest.raises(RoundAborted, match="is not there as its task has written it"):
        place.sink().seal([vote], 0.0)
    [found] = place.sink().recover()
    place.sink().abort(found)
    place.run(1, ["1"])
    assert values(spark) == ["0", "1"]


def test_a_decided_batch_whose_files_spark_removed_as_orphans_is_reported_as_lost(
    spark: IcebergSpark, place: Place
) -> None:
    place.run(0, ["0"])
    batch = place.sink().seal([place.vote(["1"], Round(1, 1))], 0.0)
    age(place, days=10)
    spark.sql(ACTIONS["removes orphan files"])
    with pytest.raises(TransactionLost, match="is gone"):
        place.sink().commit_batch(1, batch)
    assert values(spark) == ["0"]


def remove_spec(spark: IcebergSpark) -> None:
    """Have Spark remove every spec of the table that no snapshot has files of."""
    spark.sql(ACTIONS["expires snapshots"].removesuffix(")") + ", clean_expired_metadata => true)")


@pytest.fixture
def votes(spark: IcebergSpark, place: Place, server: RestCatalogServer) -> Sequence[Committable]:
    """What was pre-committed for a spec that is not the table's any more."""
    create(place, server, VALUE, spec((1, BucketTransform(2))))
    votes = [place.vote(["a"])]
    spark.sql(f"ALTER TABLE {TABLE} DROP PARTITION FIELD p0")
    spark.sql(f"INSERT INTO {TABLE} VALUES ('spark')")  # noqa: S608  # of the test
    return votes


def require_removed(place: Place) -> None:
    assert 0 not in place.table().specs()


def test_a_spec_that_spark_removed_before_the_decision_aborts_the_round(
    votes: Sequence[Committable], spark: IcebergSpark, place: Place
) -> None:
    remove_spec(spark)
    require_removed(place)
    with pytest.raises(RoundAborted, match="lost its partition spec"):
        place.sink().seal(votes, 0.0)
    place.run(1, ["b"])
    assert values(spark) == ["b", "spark"]


def test_a_spec_that_spark_removed_after_the_decision_calls_an_operator(
    votes: Sequence[Committable], spark: IcebergSpark, place: Place
) -> None:
    batch = place.sink().seal(votes, 0.0)
    remove_spec(spark)
    require_removed(place)
    with pytest.raises(OperatorRequired, match="was removed from the table"):
        place.sink().commit_batch(0, batch)
    assert values(spark) == ["spark"]


def test_a_spec_that_spark_removes_while_the_commit_is_on_its_way_calls_an_operator_who_rolls_back(
    votes: Sequence[Committable], spark: IcebergSpark, place: Place, proxy: ProxyIntoHost
) -> None:
    """This catalog does not look whether the specs are there that the request names."""
    before = place.table().metadata.current_snapshot_id
    sink = place.sink(**{"catalog.uri": proxy.url})
    batch = sink.seal(votes, 0.0)
    before_next_commit(proxy, lambda: remove_spec(spark))
    with pytest.raises(OperatorRequired, match="was removed from the table"):
        sink.commit_batch(0, batch)
    require_removed(place)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('db.orders', {before})")
    assert values(spark) == place.values() == ["spark"]


def test_a_batch_of_an_older_spec_that_spark_kept_is_committed(
    votes: Sequence[Committable], spark: IcebergSpark, place: Place
) -> None:
    write(place, 0, *votes)
    remove_spec(spark)
    assert values(spark) == place.values() == ["a", "spark"]


KEYED = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
BY_NAME = spec((2, IdentityTransform()))

KEYS: dict[str, tuple[IcebergType, pa.DataType, list[Any]]] = {
    "boolean": (BooleanType(), pa.bool_(), [True, False]),
    "int": (IntegerType(), pa.int32(), [-5, 0, 2**31 - 1]),
    "long": (LongType(), pa.int64(), [-(2**63), 0, 7]),
    "decimal": (DecimalType(9, 2), pa.decimal128(9, 2), [Decimal("1.00"), Decimal("-7.50"), Decimal("9999999.99")]),
    "date": (DateType(), pa.date32(), [date(1900, 1, 1), date(1970, 1, 1), date(2024, 2, 29)]),
    "timestamp": (TimestampType(), pa.timestamp("us"), [EARLY, NOON]),
    "timestamptz": (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        [each.replace(tzinfo=timezone.utc) for each in (EARLY, NOON)],
    ),
    "string": (StringType(), pa.string(), ["", "a", "A", "a ", "é", "e\u0301", "z" * 5000, "\ud7ff" * 20, "🐎" * 30]),
    "binary": (BinaryType(), pa.binary(), [b"", b"\0", b"\xff", b"\x80ab" * 20, b"\x80ab" * 20 + b"c"]),
}


def change(place: Place, batch_id: int, rows: pa.RecordBatch, deleted: pa.RecordBatch | None = None) -> None:
    """Write a batch of upserts and deletes by ``id``."""
    write(place, batch_id, changes(place, batch_id, rows, deleted))


def changes(place: Place, batch_id: int, rows: pa.RecordBatch, deleted: pa.RecordBatch | None = None) -> Committable:
    with Participant({"orders": place.sink(upsert_by="id")}, Round(1, batch_id), partition=0) as participant:
        if rows.num_rows:
            participant.write("orders", rows)
        if deleted is not None:
            participant.delete("orders", deleted)
        return participant.pre_commit()["orders"]


def named(ids: Sequence[Any], name: str, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, kind or pa.int64()), "name": [name] * len(ids)})


def seen(spark: IcebergSpark, place: Place) -> list[tuple[Any, str]]:
    """What Spark and DuckDB see alike."""
    found = spark.table(f"SELECT id, name FROM {TABLE}")  # noqa: S608  # of the test
    assert as_text(found) == as_text(duckdb_reads(place))
    return sorted((row["id"], row["name"]) for row in found.to_pylist())


def delete_files(spark: IcebergSpark) -> int:
    [found] = spark.sql(f"SELECT count(*) AS n FROM {TABLE}.delete_files")  # noqa: S608  # of the test
    return int(found["n"])


@pytest.fixture(
    params=[
        pytest.param((UNPARTITIONED_PARTITION_SPEC, "equality", "2"), id="equality"),
        pytest.param((BY_NAME, "equality", "3"), id="equality in partitions, version 3"),
        pytest.param((BY_NAME, "position", "2"), id="position in partitions"),
        pytest.param((UNPARTITIONED_PARTITION_SPEC, "position", "3"), id="position, version 3"),
    ]
)
def form(request: pytest.FixtureRequest, place: Place) -> tuple[Place, PartitionSpec]:
    """A place with a way to delete and a version, and the partitions of its table."""
    partitions, deletes, version = request.param
    return replace(place, deletes=deletes, version=version), partitions


@pytest.mark.parametrize("kind", KEYS)
def test_spark_and_duckdb_apply_deletes_by_each_type_of_key(
    kind: str, form: tuple[Place, PartitionSpec], spark: IcebergSpark, server: RestCatalogServer
) -> None:
    of_column, arrow, ids = KEYS[kind]
    place, partitions = form
    create(place, server, Schema(NestedField(1, "id", of_column), KEYED.fields[1]), partitions)
    change(place, 0, named(ids, "old", arrow))
    change(place, 1, named(ids[1:], "new", arrow))
    assert [name for _, name in seen(spark, place)].count("old") == 1
    assert len(seen(spark, place)) == len(ids)
    change(place, 2, named(ids[:1], "last", arrow), named(ids[1:], "", arrow))
    assert [name for _, name in seen(spark, place)] == ["last"]


@pytest.mark.parametrize(
    "action", ["rewrites data files", "rewrites manifests", "expires snapshots", "removes orphan files"]
)
def test_upserts_and_deletes_are_applied_once_whatever_spark_does_meanwhile(
    action: str,
    form: tuple[Place, PartitionSpec],
    spark: IcebergSpark,
    server: RestCatalogServer,
    proxy: ProxyIntoHost,
) -> None:
    place, partitions = form
    create(place, server, KEYED, partitions)
    change(place, 0, named(range(20), "old"))
    expected = dict.fromkeys(range(20), "old")
    for batch_id, moment in enumerate(MOMENTS, 1):
        vote = changes(place, batch_id, named([0, batch_id, 100 + batch_id], f"{batch_id}"), named([batch_id + 10], ""))
        _act(spark, action, moment == "undecided")
        sink = place.sink(upsert_by="id", **{"catalog.uri": proxy.url})
        batch = sink.seal([vote], 0.0)
        _act(spark, action, moment == "decided")
        if moment == "on its way":
            before_next_commit(proxy, lambda: _act(spark, action, True))
        sink.commit_batch(batch_id, batch)
        _act(spark, action, moment == "visible")
        for again in (sink, place.sink(upsert_by="id")):
            again.commit_batch(batch_id, batch)
        sink.complete(batch_id, batch)
        expected |= dict.fromkeys([0, batch_id, 100 + batch_id], f"{batch_id}")
        del expected[batch_id + 10]
        assert seen(spark, place) == sorted(expected.items()), moment


@pytest.mark.parametrize("partitions", [UNPARTITIONED_PARTITION_SPEC, BY_NAME], ids=["whole", "partitioned"])
def test_the_rewrite_that_doctor_names_removes_delete_files_and_brings_no_row_back(
    partitions: PartitionSpec, spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    create(place, server, KEYED, partitions)
    change(place, 0, named(range(10), "old"))
    for batch_id in range(1, 6):
        change(place, batch_id, named([batch_id], f"{batch_id}"), named([batch_id + 4], ""))
    before = seen(spark, place)
    assert delete_files(spark) == 6
    spark.sql(ACTIONS["rewrites data files"])
    assert seen(spark, place) == before
    change(place, 6, named([50], "new"))
    spark.sql(f"INSERT INTO {TABLE} VALUES (51, 'spark')")  # noqa: S608  # of the test
    assert seen(spark, place) == [*before, (50, "new"), (51, "spark")]
    # Beside that of batch 6 stays the one of the snapshot that was rewritten: Iceberg drops older ones alone.
    assert delete_files(spark) == 2


SKIPPING = {f"streaming-skip-{kind}-snapshots": "true" for kind in ("overwrite", "delete")}


def test_a_stream_stops_at_the_first_batch_with_deletes_and_can_skip_it_as_a_whole(
    form: tuple[Place, PartitionSpec], spark: IcebergSpark, server: RestCatalogServer, tmp_path: Path
) -> None:
    place, partitions = form
    create(place, server, KEYED, partitions)
    place.run(0, named([0], "appended"))

    def streamed(**options: str) -> list[tuple[int, str]]:
        found = spark.stream(TABLE, tmp_path, **options).to_pylist()
        return sorted((row["id"], row["name"]) for row in found)

    assert streamed() == [(0, "appended")]
    change(place, 1, named([1], "new"))
    expected = [(0, "appended")]
    if place.deletes == "position":
        expected.append((1, "new"))
        assert streamed() == expected
    else:  # nothing tells whether the key is new
        with pytest.raises(SqlFailed, match="Cannot process overwrite snapshot"):
            streamed()
    change(place, 2, named([0, 2], "changed"))
    with pytest.raises(SqlFailed, match="Cannot process overwrite snapshot"):
        streamed()
    assert streamed(**SKIPPING) == expected
    change(place, 3, named([], ""), named([2], ""))
    with pytest.raises(SqlFailed, match="Cannot process delete snapshot"):
        streamed(**{"streaming-skip-overwrite-snapshots": "true"})
    place.run(4, named([4], "appended"))
    assert streamed(**SKIPPING) == [*expected, (4, "appended")]
    assert seen(spark, place) == [(0, "changed"), (1, "new"), (4, "appended")]


@pytest.mark.parametrize("deletes", ["equality", "position"])
def test_a_row_that_is_replaced_gets_an_identity_of_its_own(
    deletes: str, spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    place = replace(place, deletes=deletes, version="3")
    create(place, server, KEYED)

    def identities() -> dict[int, int]:
        found = spark.sql(f"SELECT id, _row_id FROM {TABLE}")  # noqa: S608  # of the test
        return {row["id"]: row["_row_id"] for row in found}

    change(place, 0, named([1, 2], "old"))
    before = identities()
    change(place, 1, named([1], "new"))
    after = identities()
    assert after[2] == before[2]
    assert after[1] not in before.values()


def test_spark_applies_deletes_by_a_key_that_was_widened(
    spark: IcebergSpark, place: Place, server: RestCatalogServer
) -> None:
    create(place, server, Schema(NestedField(1, "id", IntegerType()), KEYED.fields[1]))
    change(place, 0, named([1, 2], "old", pa.int32()))
    undecided = changes(place, 1, named([2], "new", pa.int32()))
    spark.sql(f"ALTER TABLE {TABLE} ALTER COLUMN id TYPE BIGINT")
    write(place, 1, undecided)
    change(place, 2, named([2**40], "last"), named([1], ""))
    found = spark.sql(f"SELECT id, name FROM {TABLE}")  # noqa: S608  # of the test
    assert sorted((row["id"], row["name"]) for row in found) == [(2, "new"), (2**40, "last")]
