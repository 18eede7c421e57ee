import java.util.Map;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Copies a topic with Flink's KafkaSink, exactly once, with a checkpoint every so many milliseconds and so many parallel
 * tasks, until it is killed. Further arguments are options of its source, each before its value.
 */
public class FlinkCopy {
    /** A class rather than a lambda, because Flink needs the type, which a lambda does not carry. */
    private static class AsItIs implements SerializationSchema<byte[]> {
        @Override
        public byte[] serialize(byte[] value) {
            return value;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], source = arguments[1], target = arguments[2];
        Configuration settings = Configuration.fromMap(Map.of(
                "execution.checkpointing.interval", arguments[3] + " ms",
                "heartbeat.timeout", "1 h")); // the process is stopped while others run
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(arguments[4]), settings);
        flink.getConfig().enableObjectReuse();
        KafkaSourceBuilder<byte[]> from = KafkaSource.<byte[]>builder()
                .setBootstrapServers(servers)
                .setTopics(source)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperty("isolation.level", "read_committed")
                .setDeserializer(KafkaRecordDeserializationSchema.valueOnly(ByteArrayDeserializer.class));
        for (int next = 5; next < arguments.length; next += 2) {
            from.setProperty(arguments[next], arguments[next + 1]);
        }
        Properties producer = new Properties();
        producer.setProperty("transaction.timeout.ms", "600000");
        KafkaSink<byte[]> to = KafkaSink.<byte[]>builder()
                .setBootstrapServers(servers)
                .setKafkaProducerConfig(producer)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(target)
                .setRecordSerializer(KafkaRecordSerializationSchema.<byte[]>builder()
                        .setTopic(target)
                        .setValueSerializationSchema(new AsItIs())
                        .build())
                .build();
        flink.fromSource(from.build(), WatermarkStrategy.noWatermarks(), source).sinkTo(to);
        flink.execute();
    }
}
