import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Utils;

/** Prints what Java's client reads in a file of record batches: a line for each batch, and one for each record. */
class Decode {
    public static void main(String[] arguments) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0]))));
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            System.out.println("batch " + batch.compressionType().name + " " + batch.isTransactional()
                    + " " + batch.producerId() + " " + batch.producerEpoch() + " " + batch.baseSequence()
                    + " " + batch.countOrNull() + " " + batch.maxTimestamp());
            for (Record record : batch) {
                StringBuilder headers = new StringBuilder();
                for (Header header : record.headers()) {
                    headers.append(" ").append(text(header.key().getBytes("UTF-8"))).append(" ").append(text(header.value()));
                }
                byte[] key = record.hasKey() ? Utils.toNullableArray(record.key()) : null;
                byte[] value = record.hasValue() ? Utils.toNullableArray(record.value()) : null;
                System.out.println("record " + record.offset() + " " + record.timestamp() + " " + text(key) + " "
                        + text(value) + " " + (key == null ? 0 : Utils.murmur2(key)) + headers);
            }
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : "=" + Base64.getEncoder().encodeToString(bytes);
    }
}
