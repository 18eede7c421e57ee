"""Files that do not belong to the query, and must not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from fsspec.asyn import sync

from twopc import Participant, Round

if TYPE_CHECKING:
    from tests.campaigns.stores.places import Place

LOOK_ALIKES = {
    "_twopc/notes.txt": b"mine",
    "_twopc/.mine-0.staged": b"of no transaction",
    "_twopc/.twopc.other.orders.1.0.0.0.0-0.staged.bak": b"a copy of a staged file",
    "kind=a/part-00000.parquet.bak": b"a copy of a committed file",
}


UNCOMMITTED = "uncommitted "
"""In front of the path of a blob that is nothing but uncommitted blocks."""


def plant(place: Place) -> None:
    """Create look-alikes, and undecided pending files of another query."""
    fs, folder = place.located()
    fs.makedirs(f"{folder}/_twopc", exist_ok=True)
    fs.makedirs(f"{folder}/kind=a", exist_ok=True)
    for name, data in LOOK_ALIKES.items():
        fs.pipe_file(f"{folder}/{name}", data)
    if place.holds_uploads:
        bucket, _, key = folder.partition("/")
        fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}/part-00000.parquet")
    if place.stages_blocks:
        _stage(place)
    sink = place.sink()
    sink.bind("orders", "other")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", pa.record_batch({"n": [0], "kind": ["a"]}))
        participant.pre_commit()


def present(place: Place) -> dict[str, str]:
    """Return everything in the folder: path or upload → a value that changes with it."""
    fs, folder = place.located()
    found = {path.removeprefix(f"{folder}/"): str(info["size"]) for path, info in fs.find(folder, detail=True).items()}
    if place.holds_uploads:
        bucket, _, key = folder.partition("/")
        uploads = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/").get("Uploads", ())
        found |= {f"upload {upload['UploadId']}": upload["Key"] for upload in uploads}
    if place.stages_blocks:
        found |= {f"{UNCOMMITTED}{name}": "" for name in _uncommitted(place) if name not in found}
    return found


def _stage(place: Place) -> None:
    """Upload a block of a blob that no list of blocks publishes."""
    fs, folder = place.located()
    container, _, path = folder.partition("/")
    client = fs.service_client.get_blob_client(container, f"{path}/part-00000.parquet")
    sync(fs.loop, client.stage_block, "mine", b"mine")


def _uncommitted(place: Place) -> list[str]:
    """Return the paths of all blobs in the folder, including those of uncommitted blocks."""
    fs, folder = place.located()
    container, _, path = folder.partition("/")

    async def names() -> list[str]:
        client = fs.service_client.get_container_client(container)
        listed = client.list_blobs(f"{path}/", include=["uncommittedblobs"])
        return [blob.name.removeprefix(f"{path}/") async for blob in listed]

    found: list[str] = sync(fs.loop, names)
    return found
