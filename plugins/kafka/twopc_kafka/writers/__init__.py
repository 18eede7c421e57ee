"""The writers of one transaction: the Arrow writer and librdkafka for records, and the writer of a group's offsets."""
