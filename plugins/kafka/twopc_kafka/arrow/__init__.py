"""A data plane of its own: Arrow record batches become Kafka's record batches without a Python object per record.

A transactional writer for one task needs little of a producer. It writes in order, and where an answer is unclear it
may give up: the batch is run again. What a producer has beyond that (lingering, retries of its own, callbacks) is left
out on purpose.

=============  ================================================================================================
module         what it knows
=============  ================================================================================================
varints        Kafka's integers of variable length, for whole columns
records        columns → encoded records
batches        encoded records → record batches (format v2) of allowed size
compression    the codecs, framed as Java's consumer wants them
partitions     which record goes where
settings       which of the sink's options this writer honours
answers        what the brokers' error codes mean to it
cluster        the connections of this process, and the thread that drives them
sending        batches on their way, in that thread: order, memory, repeats
writer         one transaction in the task's thread, from Arrow to acknowledged
=============  ================================================================================================

The first five do no I/O.
"""
