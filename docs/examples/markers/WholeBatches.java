import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
/** Shows whole batches, each as a file of FOLDER: java WholeBatches SERVERS FOLDER MARKERS TOPIC... */
class WholeBatches {
    public static void main(String[] args) throws java.io.IOException {
        var part = java.util.regex.Pattern.compile("\\[\"([^\"]+)\",(\\d+),(\\d+),"); // topic, partition, records
        var consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", args[0], "group.id", "whole-java-" + args[2],
            "isolation.level", "read_committed", "auto.offset.reset", "earliest", "enable.auto.commit", "false"),
            new StringDeserializer(), new StringDeserializer());
        var every = Arrays.stream(args).skip(2).flatMap(topic -> consumer.partitionsFor(topic).stream()); // not subscribe
        consumer.assign(every.map(each -> new TopicPartition(each.topic(), each.partition())).toList());
        var held = new HashMap<String, List<ConsumerRecord<String, String>>>(); // of each batch, with its marker
        var markers = new LinkedHashMap<String, String>();
        while (true) {
            for (var record : consumer.poll(java.time.Duration.ofMillis(500))) {
                var header = record.headers().lastHeader("twopc-batch");
                var batch = header == null ? "" : new String(header.value()).replace('/', '.');
                if (Files.exists(Path.of(args[1], batch))) continue; // read again, or its marker was written twice
                if (record.topic().equals(args[2]) && markers.put(batch, record.value()) != null) continue;
                held.computeIfAbsent(batch, key -> new ArrayList<>()).add(record);
            }
            for (var batch : List.copyOf(markers.keySet())) {
                var parts = part.matcher(markers.get(batch)).results(); // of the topics that this reader reads:
                var here = parts.filter(each -> List.of(args).lastIndexOf(each.group(1)) > 2);
                if (held.get(batch).size() <= here.mapToInt(each -> Integer.parseInt(each.group(3))).sum()) break;
                var lines = held.remove(batch).stream().map(each -> each.topic() + "\t" + each.value()).toList();
                Files.move(Files.write(Path.of(args[1] + ".new"), lines), Path.of(args[1], batch));
                markers.remove(batch);
            }
            var keep = new HashMap<TopicPartition, OffsetAndMetadata>(); // no further than the first record that is held
            for (var place : consumer.assignment()) keep.put(place, new OffsetAndMetadata(consumer.position(place)));
            held.values().stream().flatMap(List::stream).sorted((a, b) -> Long.compare(b.offset(), a.offset())).forEach(
                a -> keep.put(new TopicPartition(a.topic(), a.partition()), new OffsetAndMetadata(a.offset())));
            consumer.commitAsync(keep, null);
        }
    }
}
