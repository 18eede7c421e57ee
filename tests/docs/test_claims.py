"""Pages agree with each other and with the code, where they once did not."""

import ast
import inspect
import re

import pytest

import twopc
from tests.support.pages import DOCS, PAGES, ROOT, blocks, site_script
from twopc.spark import foreach_batch

TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}

BACKENDS = {
    readme.parent.name: readme.parent.name
    for readme in ROOT.glob("plugins/*/README.md")
    if readme.parent.name != "kafka-broker"
} | {"postgres": "PostgreSQL", "mysql": "MariaDB", "sql": "SQL"}


def test_no_page_calls_a_restart_safe_after_a_driver_was_fenced() -> None:
    assert [name for name, text in TEXTS.items() if re.search(r"[Ss]tarting again is safe", text)] == []
    assert "After `Fenced`, a restart fences the newer driver;" in TEXTS["docs/operating.md"]


def test_the_state_of_the_file_sink_names_the_stores_that_need_repair_by_hand() -> None:
    rows = site_script("landing").rows(TEXTS["docs/choose-a-backend.md"], "State of each backend")
    [files] = [row for row in rows if row[0].startswith("[files]")]
    for store in ("MinIO", "versitygw"):
        assert f"avoid {store}" in files[3] or f"and {store}" in files[3]
        assert store in TEXTS["plugins/files/README.md"]


def test_the_measurements_say_whether_more_or_less_is_better() -> None:
    measured = TEXTS["docs/performance.md"].partition("\n## How to get it\n")[0]
    rows = re.findall(r"^\|(.*\d.*)\|$", measured, re.MULTILINE)
    assert {row.rpartition("|")[2].strip() for row in rows} == {"more", "less"}


def test_spark_gets_its_checkpoint_by_a_scheme_that_it_has() -> None:
    of_s3 = re.compile(r"""checkpoint(?:Location)?["`]?[,=( ]+f?["`]s3://""")
    assert [name for name, text in TEXTS.items() if of_s3.search(text)] == []


@pytest.mark.parametrize("page", ["guarantees.md", "errors.md", "operating.md", "choose-a-backend.md"])
def test_a_page_about_all_sinks_names_each(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8").lower()
    assert [name for name in BACKENDS.values() if name.lower() not in text] == []


def test_every_source_of_kafka_that_a_page_names_is_one_that_is_published() -> None:
    named = {
        found for text in TEXTS.values() for found in re.findall(r"spark-sql-kafka-0-10_2\.13:(\S+?)[,` \n]", text)
    }
    assert named <= {"4.0.3", "4.1.2", "4.2.0"}
    assert {"4.2.1", "4.3.0"} <= {*re.findall(r"\d\.\d\.\d", TEXTS["docs/production.md"])}


def test_the_log_is_moved_by_a_section_that_has_the_command() -> None:
    section = TEXTS["docs/change-a-query.md"].partition("\n## Move the log to another place\n")[2].partition("\n## ")[0]
    assert "aws s3 cp" in section
    for name in ("docs/stores.md", "docs/errors.md"):
        assert "move-the-log-to-another-place" in TEXTS[name]


def test_the_core_exports_what_the_pages_call() -> None:
    called = {found for text in TEXTS.values() for found in re.findall(r"\btwopc\.([a-z_]+)\(", text)}
    assert [name for name in sorted(called) if not hasattr(twopc, name)] == []


VERDICTS = {"run", "emulator", "read", "refused", "not run"}

PLATFORMS = (
    *("Databricks", "EMR", "Dataproc", "Synapse", "Fabric", "Kubernetes", "standalone"),
    *("MSK", "Confluent Cloud", "Redpanda", "WarpStream", "Event Hubs"),
    *("Glue", "Unity", "Hive", "REST", "Nessie"),
    *("S3", "ADLS", "Google Cloud Storage", "HDFS"),
)
"""Each about which a reader asks."""


def test_each_platform_has_a_verdict_and_what_shows_it() -> None:
    rows = site_script("landing").rows(TEXTS["docs/choose-a-backend.md"], "Platforms")
    targets = {*re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}
    for platform, verdict, shown_by in rows:
        named = re.findall(r"`(?:make ([\w-]+)|(tests/\S+\.py))`", shown_by)
        assert verdict in VERDICTS, platform
        assert all(target in targets or (ROOT / file).is_file() for target, file in named), platform
        assert bool(named or "on-paper" in shown_by) == (verdict != "not run"), platform
    platforms = " ".join(platform for platform, *_ in rows)
    assert [name for name in PLATFORMS if name not in platforms] == []


def test_the_page_on_spark_has_every_module_that_calls_the_jvm() -> None:
    section = TEXTS["docs/internals/spark.md"].partition("\n## What asks the JVM\n")[2].partition("\n## ")[0]
    modules = (ROOT / "twopc" / "spark").glob("**/*.py")
    asks = re.compile(r"\bjava\.(?:jvm|of_\w+)\(|\.sparkContext\b")
    calling = {path.stem for path in modules if asks.search(path.read_text("utf-8"))}
    assert calling == {*re.findall(r"^\| `(\w+)`", section, re.MULTILINE)}


def test_no_page_gives_foreach_batch_an_argument_that_it_does_not_have() -> None:
    parameters = inspect.signature(foreach_batch).parameters
    given = {
        keyword.arg
        for page in PAGES
        for code in blocks(page, "python")
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "foreach_batch"
        for keyword in node.keywords
    }
    assert {"log", "on_loss", "offsets"} & given
    assert given <= {*parameters}


def test_the_page_on_monitoring_says_that_a_slow_store_holds_up_no_other_log() -> None:
    """As ``test_a_store_that_does_not_answer_holds_up_neither_a_scrape_nor_another_log`` shows."""
    assert "on a thread of its own" in " ".join(TEXTS["docs/monitoring.md"].split())
