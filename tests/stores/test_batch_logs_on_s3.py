"""Logs of complete batches on S3: a server that ignores the condition of a put is refused before the first entry."""

import pytest

from tests.stores.conftest import Bucket
from tests.stores.test_log_on_s3 import TestLogOnS3 as OnS3
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError
from twopc_files.sink import FileSink


@pytest.mark.long
@pytest.mark.parametrize("logs", ["spark", "manifest"])
def test_a_server_that_ignores_the_condition_is_refused_before_the_first_entry(logs: str, bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", OnS3.ignoring)
    sink = FileSink({"path": bucket.url("orders"), "storage_options": bucket.storage_options, "batch_logs": logs})
    sink.bind("orders", "log")
    with pytest.raises(ConfigurationError, match=r"a log of complete batches can't be kept at .*overwrites"):
        sink.open()
    assert bucket.objects() == []
    found = [check for check in sink.check() if "logs of complete batches" in check.check]
    assert [check.result for check in found] == [CheckStatus.FAILED]
