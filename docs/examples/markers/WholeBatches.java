import java.nio.file.*; import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
/** Shows whole batches, each as a file of FOLDER: java WholeBatches SERVERS FOLDER MARKERS TOPIC... */
class WholeBatches {
    public static void main(String[] args) throws java.io.IOException {
        var row = java.util.regex.Pattern.compile("\\[\"([^\"]+)\",(\\d+),(\\d+),(\\d+)"); // topic to end offset
        var text = new org.apache.kafka.common.serialization.StringDeserializer();
        var consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", args[0], "group.id", "whole-java-" + args[2],
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "isolation.level", "read_committed"), text, text);
        var every = Arrays.stream(args).skip(2).flatMap(topic -> consumer.partitionsFor(topic).stream()); // no subscribe
        consumer.assign(every.map(each -> new TopicPartition(each.topic(), each.partition())).toList());
        var held = new HashMap<String, List<ConsumerRecord<String, String>>>(); // of each batch, with its marker
        var markers = new LinkedHashMap<String, String>();
        while (true) {
            for (var record : consumer.poll(java.time.Duration.ofMillis(500))) {
                var batch = Optional.ofNullable(record.headers().lastHeader("twopc-batch")).map(each -> each.value())
                    .map(String::new).orElse("").replace('/', '.');
                if (Files.exists(Path.of(args[1], batch))) continue; // it has no header, or its batch has been shown
                if (record.topic().equals(args[2]) && markers.put(batch, record.value()) != null) continue;
                held.computeIfAbsent(batch, key -> new ArrayList<>()).add(record);
            }
            for (var batch : List.copyOf(markers.keySet())) {
                var parts = row.matcher(markers.get(batch)).results().filter(r -> List.of(args).lastIndexOf(r.group(1)) > 2).toList();
                if (parts.stream().anyMatch(r -> consumer.position(new TopicPartition(r.group(1), Integer.parseInt(r.group(2))))
                    < Long.parseLong(r.group(4)))) break; // more records come
                var lines = held.remove(batch).stream().map(a -> a.topic() + "\t" + Objects.toString(a.value(), "")).toList();
                if (lines.size() <= parts.stream().mapToInt(r -> Integer.parseInt(r.group(3))).sum())
                    System.err.println("left out, because the topics no longer have all of its records: " + batch);
                else if (!parts.isEmpty()) Files.move(Files.write(Path.of(args[1] + ".new"), lines), Path.of(args[1], batch));
                markers.remove(batch);
            }
            var keep = new HashMap<TopicPartition, OffsetAndMetadata>(); // up to the first record that is held
            for (var each : consumer.assignment()) keep.put(each, new OffsetAndMetadata(consumer.position(each)));
            held.values().stream().flatMap(List::stream).sorted((a, b) -> Long.compare(b.offset(), a.offset())).forEach(
                a -> keep.put(new TopicPartition(a.topic(), a.partition()), new OffsetAndMetadata(a.offset())));
            consumer.commitAsync(keep, null);
        }
    }
}
