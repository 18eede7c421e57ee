"""Encoding of Arrow record batches as Kafka's record batches, without a Python object per record. No I/O."""
