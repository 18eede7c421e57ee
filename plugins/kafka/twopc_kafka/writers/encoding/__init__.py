"""Arrow record batches become Kafka's record batches without a Python object per record. No I/O."""
