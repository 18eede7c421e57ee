"""Encode Arrow record batches as Kafka's record batches, without a Python object per record. No I/O.

===============  ===================================================================
module           content
===============  ===================================================================
``records``      Arrow columns → encoded records
``batches``      encoded records → record batches of format v2
``partitions``   the partition of each record, by Java's murmur2
``compression``  the codecs
``varints``      Kafka's variable-length integers, for whole columns
``buffers``      memory that Arrow reuses
``produce``      a Produce request that copies its records once
===============  ===================================================================
"""
