import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Writes numbers with Flink's KafkaSink, exactly once, from the newest checkpoint on. When the file "stop" exists, it
 * stops with a savepoint, so that everything is committed.
 */
public class FlinkNumbers {
    private static final long NUMBERS_OF_A_TASK = 1L << 40;

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable error) { // threads of the cluster would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        String servers = arguments[0], topic = arguments[1];
        Path folder = Path.of(arguments[2]);
        int parallelism = Integer.parseInt(arguments[3]);
        double recordsPerSecond = Double.parseDouble(arguments[4]);

        Map<String, String> settings = new HashMap<>(Map.of(
                "execution.checkpointing.interval", "1 s",
                "execution.checkpointing.dir", folder.resolve("checkpoints").toUri().toString(),
                "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION"));
        newestCheckpoint(folder).ifPresent(path -> settings.put("execution.state-recovery.path", path.toString()));
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, Configuration.fromMap(settings));

        GeneratorFunction<Long, String> asRecord = number -> "0:0:" + number + ":flink:" + "x".repeat(60);
        DataGeneratorSource<String> numbers = new DataGeneratorSource<>(
                asRecord, parallelism * NUMBERS_OF_A_TASK, RateLimiterStrategy.perSecond(recordsPerSecond), Types.STRING);
        Properties producer = new Properties();
        producer.setProperty("transaction.timeout.ms", "600000");
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(servers)
                .setKafkaProducerConfig(producer)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(topic)
                .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                        .setTopic(topic)
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        flink.fromSource(numbers, WatermarkStrategy.noWatermarks(), "numbers").uid("numbers").sinkTo(sink).uid("sink");
        JobClient job = flink.executeAsync();
        while (!job.getJobStatus().get().isGloballyTerminalState()) {
            if (Files.exists(folder.resolve("stop"))) {
                String savepoints = folder.resolve("savepoints").toUri().toString();
                job.stopWithSavepoint(true, savepoints, SavepointFormatType.CANONICAL).get();
                return;
            }
            Thread.sleep(100);
        }
        job.getJobExecutionResult().get(); // raises the reason
    }

    private static Optional<Path> newestCheckpoint(Path folder) throws IOException {
        if (!Files.exists(folder.resolve("checkpoints"))) {
            return Optional.empty();
        }
        try (Stream<Path> files = Files.walk(folder.resolve("checkpoints"), 3)) {
            return files.filter(path -> path.endsWith("_metadata"))
                    .map(Path::getParent)
                    .max(Comparator.comparingLong(FlinkNumbers::number));
        }
    }

    /** "chk-7" is the checkpoint with the number 7. */
    private static long number(Path checkpoint) {
        return Long.parseLong(checkpoint.getFileName().toString().substring("chk-".length()));
    }
}
