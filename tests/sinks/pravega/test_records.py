"""Which records are events, and how they come out."""

import json

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.support.pravega_server import run_java
from twopc.errors import RecordRefused
from twopc_pravega.events import LARGEST_EVENT, blocks, unframed

READ = """
import io.pravega.client.*; import io.pravega.client.admin.*; import io.pravega.client.stream.*;
import io.pravega.client.stream.impl.*;
import java.net.URI; import java.util.*;
public class Read {
  public static void main(String[] a) throws Exception {
    ClientConfig config = ClientConfig.builder().controllerURI(URI.create(a[0])).build();
    int wanted = Integer.parseInt(a[3]);
    try (ReaderGroupManager manager = ReaderGroupManager.withScope(a[1], config)) {
      manager.createReaderGroup("group", ReaderGroupConfig.builder().stream(Stream.of(a[1], a[2])).build());
      try (EventStreamClientFactory factory = EventStreamClientFactory.withScope(a[1], config);
           EventStreamReader<byte[]> reader = factory.createReader(
               "reader", "group", new ByteArraySerializer(), ReaderConfig.builder().build())) {
        for (int found = 0, idle = 0; idle < 2; ) {
          EventRead<byte[]> event = reader.readNextEvent(found < wanted ? 30000 : 2000);
          if (event.isCheckpoint()) continue;
          if (event.getEvent() == null) { idle++; continue; }
          found++;
          System.out.println(Base64.getEncoder().encodeToString(event.getEvent()));
        }
      }
    }
    System.exit(0);
  }
}
"""

VALUES = [*(f"{n}" for n in range(200)), "", "Grüße 🐎", "line\nbreak", "x" * 2_000_000]


def test_the_java_client_reads_what_is_committed_and_nothing_else(place: Place) -> None:
    """An older transaction that is still open holds back nothing."""
    import base64

    place.pre_commit(["open"], partition=1)
    place.sink().abort(place.pre_commit(["rolled back"], partition=2))
    place.sink().commit(place.pre_commit(VALUES))
    read = run_java(
        place.server, "Read", READ, place.server.uri, place.stream.scope, place.stream.name, str(len(VALUES))
    )
    assert sorted(base64.b64decode(line).decode() for line in read.split("\n")[:-1]) == sorted(VALUES)


def test_the_longest_event_is_read_back_and_a_longer_one_is_refused(place: Place) -> None:
    longest = pa.array([b"x" * LARGEST_EVENT, b"y"])
    place.sink().commit(place.pre_commit(pa.record_batch({"value": longest})))
    assert sorted(len(value) for value in place.values()) == [1, LARGEST_EVENT]
    with pytest.raises(RecordRefused, match="Split or filter") as refused:
        place.vote(pa.record_batch({"value": pa.array([b"a", b"x" * (LARGEST_EVENT + 1)])}))
    assert (refused.value.record, refused.value.column) == (1, "value")


def test_records_that_are_no_events_are_left_out(place: Place) -> None:
    not_utf8 = pa.array([b"k", b"\xff", None, b"k"]).cast(pa.binary())
    keys = pa.StringArray.from_buffers(4, *not_utf8.buffers()[1:], not_utf8.buffers()[0])
    records = {"value": pa.array(["a", "b", "c", None]), "key": keys}
    committable, refused = place.vote_without_bad(records)
    assert sorted(refused) == [1, 3]
    place.sink().commit(committable)
    assert sorted(place.values()) == ["a", "c"]


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_events_are_framed_from_any_slice_of_any_type(type: pa.DataType) -> None:
    values = pa.array([json.dumps(n) * (n % 50) for n in range(100_000)], pa.string()).cast(type).slice(1000, 98_000)
    framed = [(bytes(block), count) for block, count in blocks(values)]
    assert len(framed) > 1
    assert sum(count for _, count in framed) == len(values)
    found = [event for block, _ in framed for event, _ in unframed(block)]
    assert found == values.cast(pa.large_binary()).to_pylist()
