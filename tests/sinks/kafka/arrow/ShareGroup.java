import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

/** Makes a share group, and leaves it empty. Arguments: servers, group, topic. */
public class ShareGroup {
    public static void main(String[] given) {
        var properties = new Properties();
        properties.put("bootstrap.servers", given[0]);
        properties.put("group.id", given[1]);
        for (var part : List.of("key", "value")) {
            properties.put(part + ".deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        }
        try (var consumer = new KafkaShareConsumer<byte[], byte[]>(properties)) {
            consumer.subscribe(List.of(given[2]));
            for (int polls = 0; polls < 10; polls++) {
                consumer.poll(Duration.ofMillis(300));
            }
        }
    }
}
