"""A driver whose query comes from a Spark Connect client. The driver is the server; the client is a child process."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict

from pyspark.sql import SparkSession

from tests.campaigns.spark.job import Job
from tests.support.kills import bound


def serve(spark: SparkSession, job: Job) -> None:
    """Serve a client until everything is written. Start another client whenever one is killed."""
    context = spark.sparkContext._jsc.sc()
    package = spark._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service.start(context)
    url = f"sc://127.0.0.1:{service.localPort()}"
    command = bound(sys.executable, "-m", "tests.campaigns.spark.client", url, json.dumps(asdict(job)))
    while (ended := subprocess.run(command, start_new_session=True, check=False).returncode) == -signal.SIGKILL:
        pass
    if ended:
        raise RuntimeError(f"the client ended with {ended}")
