"""Which segment an event goes to: the one that Pravega's Java client would choose."""

from collections import Counter

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place, make_place
from tests.support.pravega_server import PravegaServer, run_java
from twopc_pravega.events import BLOCK_BYTES, key_position

FROM_JAVA = {
    "": 0.24117842791623523,
    "a": 0.9433912753816884,
    "key": 0.8449093464660018,
    "Grüße 🐎": 0.008764401774510544,
}
"""What ``HashHelper.seededWith("EventRouter").hashToRange`` of pravega-common 0.13.0 returns."""

WRITE = """
import io.pravega.client.*; import io.pravega.client.stream.*; import io.pravega.client.stream.impl.*;
import java.net.URI;
public class Write {
  public static void main(String[] a) throws Exception {
    ClientConfig config = ClientConfig.builder().controllerURI(URI.create(a[0])).build();
    try (EventStreamClientFactory factory = EventStreamClientFactory.withScope(a[1], config);
         EventStreamWriter<String> writer = factory.createEventWriter(
             a[2], new UTF8StringSerializer(), EventWriterConfig.builder().build())) {
      for (int n = 0; n < 60; n++) writer.writeEvent("Schlüssel " + n, "java " + n).join();
    }
    System.exit(0);
  }
}
"""


def test_a_key_lies_where_the_java_client_has_it() -> None:
    assert {key: key_position(key) for key in FROM_JAVA} == FROM_JAVA


def test_events_of_one_key_are_in_the_segment_that_the_java_client_writes_it_to(pravega_server: PravegaServer) -> None:
    place = make_place(pravega_server, segments=5)
    run_java(pravega_server, "Write", WRITE, pravega_server.uri, place.stream.scope, place.stream.name)
    numbers = [str(n) for n in range(60)]
    keys = pa.array([f"Schlüssel {n}" for n in numbers])
    committable = place.pre_commit(pa.record_batch({"key": keys, "value": [f"python {n}" for n in numbers]}))
    place.sink().commit(committable)
    found = [{event.decode() for event in events} for events in place.admin.events(place.stream).values()]
    assert sum(map(len, found)) == 120
    assert all(bool(events) for events in found)
    for n in numbers:
        assert any({f"java {n}", f"python {n}"} <= events for events in found), n


def test_events_of_one_key_keep_their_order(place: Place) -> None:
    keys, values = [], []
    for n in range(300):
        keys.append(f"{n % 7}")
        values.append(f"{n % 7}:{n}")
    place.sink().commit(place.pre_commit(pa.record_batch({"value": values, "key": keys})))
    for events in place.admin.events(place.stream).values():
        for key in range(7):
            numbers = [int(event.decode().split(":")[1]) for event in events if event.startswith(b"%d:" % key)]
            assert numbers == sorted(numbers)
    assert Counter(place.values()) == Counter(values)


def test_events_without_a_key_are_spread_over_the_segments_in_blocks(pravega_server: PravegaServer) -> None:
    place = make_place(pravega_server, segments=3)
    values = [f"{n}".ljust(BLOCK_BYTES // 4, ".") for n in range(24)]
    place.sink().commit(place.pre_commit(values))
    found = place.admin.events(place.stream)
    assert sorted(map(len, found.values())) == [6, 9, 9] or all(found.values())
    assert sorted(event.decode() for events in found.values() for event in events) == sorted(values)


@pytest.mark.parametrize("type", [pa.string(), pa.large_string()])
def test_a_null_key_is_no_key(type: pa.DataType, place: Place) -> None:
    records = pa.record_batch({"value": ["a", "b", "c"], "key": pa.array(["x", None, None], type)})
    place.sink().commit(place.pre_commit(records))
    assert sorted(place.values()) == ["a", "b", "c"]
