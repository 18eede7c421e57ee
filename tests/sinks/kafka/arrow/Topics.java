import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes the records of a file to a topic, and prints what committed records it finds in that topic and in others.
 *
 * <p>A line of the file: partition or "-", timestamp, key, value, and each header's key and value.
 */
class Topics {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        write(servers, Files.readAllLines(Path.of(arguments[1])), arguments[2]);
        for (int number = 2; number < arguments.length; number++) {
            read(servers, arguments[number]);
        }
    }

    private static void write(String servers, List<String> lines, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "transactional.id", "java-" + topic);
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (String line : lines) {
                Iterator<String> words = List.of(line.split(" ")).iterator();
                String partition = words.next();
                long timestamp = Long.parseLong(words.next());
                byte[] key = content(words.next());
                byte[] value = content(words.next());
                List<Header> headers = new ArrayList<>();
                while (words.hasNext()) {
                    headers.add(new RecordHeader(new String(content(words.next())), content(words.next())));
                }
                Integer number = partition.equals("-") ? null : Integer.valueOf(partition);
                producer.send(new ProducerRecord<>(topic, number, timestamp, key, value, headers));
            }
            producer.commitTransaction();
        }
    }

    private static void read(String servers, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "isolation.level", "read_committed");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(partition -> new TopicPartition(topic, partition.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    StringBuilder headers = new StringBuilder();
                    for (Header header : record.headers()) {
                        headers.append(" ").append(text(header.key().getBytes())).append(" ").append(text(header.value()));
                    }
                    System.out.println(topic + " " + record.partition() + " " + record.offset() + " " + record.timestamp()
                            + " " + text(record.key()) + " " + text(record.value()) + headers);
                }
            }
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : "=" + Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] content(String text) {
        return text.equals("null") ? null : Base64.getDecoder().decode(text.substring(1));
    }
}
