"""Encoding of Arrow record batches as Kafka's record batches, without a Python object per record. No I/O.

===============  ===================================================================
module           content
===============  ===================================================================
``records``      Arrow columns → encoded records
``batches``      encoded records → record batches of format v2
``partitions``   the choice of each record's partition, with Java's murmur2
``compression``  the codecs
``varints``      Kafka's variable-length integers, for whole columns
``buffers``      byte buffers in memory that Arrow reuses
``produce``      a Produce request that copies its records once
===============  ===================================================================
"""
