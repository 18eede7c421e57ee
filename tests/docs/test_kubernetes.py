"""The files of docs/kubernetes.md: what a cluster would refuse, and what can be run without one."""

import ast
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.environments import uv
from tests.support.pages import ROOT
from twopc.exit_codes import ExitCode
from twopc_kafka_broker.cache import cache_folder, publish

FOLDER = ROOT / "docs" / "examples" / "kubernetes"
SCHEMAS = "kubernetes-validate==1.37.0"
OLDEST = "1.31"
"""The first release of Kubernetes in which podFailurePolicy is stable."""

MANIFESTS = [
    (path.name, document)
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [document for _, document in MANIFESTS if document["kind"] == kind]
    return dict(found)


def checked(document: Any, version: str) -> str:
    """Return what the schema of a release of Kubernetes has against a document."""

    def install(folder: Path) -> None:
        subprocess.run([uv(), "pip", "install", "--quiet", "--target", str(folder), SCHEMAS], check=True)

    try:
        schemas = publish(cache_folder() / SCHEMAS.replace("==", "-"), install)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the schemas can't be installed (uv pip install {SCHEMAS}): {error}")
    program = (
        "import sys, yaml, kubernetes_validate as k\n"
        "try: k.validate(yaml.safe_load(sys.stdin), sys.argv[1], strict=True)\n"
        "except k.ValidationError as error: print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, version],
        input=yaml.safe_dump(document),
        env={**os.environ, "PYTHONPATH": str(schemas)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return str(done.stdout + done.stderr)


@pytest.mark.long
@pytest.mark.parametrize("version", [OLDEST, "1.37"])
def test_kubernetes_takes_the_manifests_of_the_job(version: str) -> None:
    own = [document for name, document in MANIFESTS if name == "job.yaml"]
    assert [document["kind"] for document in own] == ["ServiceAccount", "Role", "RoleBinding", "Job"]
    assert "".join(checked(document, version) for document in own) == ""
    job = of_kind("Job")
    assert "podFailurePolicies" in checked({**job, "spec": {**job["spec"], "podFailurePolicies": {}}}, version)


def test_kubernetes_takes_the_pods_of_the_spark_application() -> None:
    spec = of_kind("SparkApplication")["spec"]
    for part in ("driver", "executor"):
        own = spec[part]
        main = {key: own[key] for key in ("env", "envFrom", "lifecycle") if key in own}
        for container in own.get("template", {}).get("spec", {}).get("containers", ()):
            main |= container
        containers = [{"name": "spark", "image": "x", **main}, *own.get("sidecars", ())]
        pod = {"containers": containers, "terminationGracePeriodSeconds": own.get("terminationGracePeriodSeconds", 30)}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
        assert checked(document, OLDEST) == ""


def test_the_job_leaves_a_driver_stopped_after_exactly_the_codes_that_need_an_operator() -> None:
    job = of_kind("Job")["spec"]
    fails, ignores = job["podFailurePolicy"]["rules"]
    assert fails["onExitCodes"]["values"] == [code for code in ExitCode if code.stays_stopped]
    assert (fails["action"], ignores["action"]) == ("FailJob", "Ignore")
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert fails["onExitCodes"]["containerName"] in [each["name"] for each in job["template"]["spec"]["containers"]]


def test_each_process_that_reaches_the_bucket_has_its_credentials() -> None:
    given = [{"secretRef": {"name": "orders-s3"}}]
    pod = of_kind("Job")["spec"]["template"]["spec"]
    application = of_kind("SparkApplication")["spec"]
    of_the_application = (application["driver"], application["executor"], *application["driver"]["sidecars"])
    for each in (*pod["containers"], *pod["initContainers"], *of_the_application):
        assert each["envFrom"] == given
    # Spark starts the executors of the Job, and passes no variable of the driver on.
    [container] = pod["containers"]
    [arguments] = [each["value"] for each in container["env"] if each["name"] == "PYSPARK_SUBMIT_ARGS"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert f"--conf spark.kubernetes.executor.secretKeyRef.{name}=orders-s3:{name} " in arguments


def test_the_spark_operator_sees_a_held_driver_as_not_ready() -> None:
    driver = of_kind("SparkApplication")["spec"]["driver"]
    [held] = [each["value"] for each in driver["env"] if each["name"] == "TWOPC_HOLD"]
    [container] = driver["template"]["spec"]["containers"]
    assert f"test ! -e {held}" in " ".join(container["readinessProbe"]["exec"]["command"])
    program = (FOLDER / "orders.py").read_text(encoding="utf-8")
    assert 'hold=os.environ.get("TWOPC_HOLD")' in program
    assert 'Path("/tmp/driver.pid").write_text' in program
    assert "/tmp/driver.pid" in " ".join(driver["lifecycle"]["preStop"]["exec"]["command"])  # noqa: S108


@pytest.mark.long
def test_the_driver_can_be_checked_before_it_runs(kafka_broker: Any, s3: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twopc.cli", "doctor", "--query", "orders:write"],
        cwd=FOLDER,
        env={**os.environ, **s3, "KAFKA_SERVERS": kafka_broker.bootstrap_servers, "BUCKET": "orders"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(r"^orders +topic 'orders': existence +failed ", done.stdout, re.MULTILINE), done.stderr
    assert re.search(r"^archive +trial file in s3://orders/archive +passed$", done.stdout, re.MULTILINE)
    assert re.search(r"^\(the log\) +commit log +passed +none yet", done.stdout, re.MULTILINE)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server with the bucket ``orders``, as the environment of its clients."""
    import s3fs

    from tests.support.s3_server import S3Server

    with S3Server(tmp_path / "s3.log") as server:
        s3fs.S3FileSystem(**server.storage_options).mkdir("orders")
        yield {
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def runs(containerfile: str) -> list[str]:
    return re.findall(r"^RUN (.+)$", containerfile, re.MULTILINE)


@pytest.mark.long
def test_the_recipes_environment_has_twopc_its_backends_and_the_pyspark_of_spark_home(tmp_path: Path) -> None:
    """Its commands, but those of apt and of the image."""
    import pyspark

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for project in (".", "plugins/kafka", "plugins/files"):
        subprocess.run([uv(), "build", "--quiet", "--wheel", "--out-dir", str(wheels), project], cwd=ROOT, check=True)
    home = Path(pyspark.__file__ or "").parent
    spark = tmp_path / "spark"
    (spark / "python").mkdir(parents=True)
    (spark / "python" / "lib").symlink_to(home / "python" / "lib")
    (spark / "python" / "pyspark").symlink_to(home)
    _, made, installed, path, tried = runs((FOLDER / "Containerfile").read_text(encoding="utf-8"))
    assert made == "python3 -m venv /opt/twopc"
    venv.create(tmp_path / "twopc", with_pip=True)
    done = None
    for command in (installed, path, tried):
        here = command.replace("/opt/twopc", str(tmp_path / "twopc")).replace("/tmp/wheels", str(wheels))  # noqa: S108
        environment = {"PATH": os.environ["PATH"], "SPARK_HOME": str(spark), "HOME": str(tmp_path)}
        own = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        done = subprocess.run(
            ["/bin/sh", "-c", here], env=environment | own, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, shlex.join(["sh", "-c", here]) + done.stderr
    assert done is not None
    assert done.stdout.startswith("twopc, version ")


def test_the_driver_on_the_page_is_that_of_the_file() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    program = (FOLDER / "orders.py").read_text(encoding="utf-8")
    ast.parse(program)
    shown = re.findall(r"```python\n(.+?)```", page, re.DOTALL)[0]
    for line in shown.splitlines():
        assert line.strip() in (*map(str.strip, program.splitlines()), "...")
