"""The writers of one transaction's records: librdkafka's, the Arrow writer, and that of a group's offsets."""
