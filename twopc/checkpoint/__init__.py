"""Reads, compares and restores the parts of Spark's checkpoint folder that define what a batch reads.

- ``offsets``: Spark's offset log entries as JSON
- ``source_files``: the files that the offsets of a file source stand for
- ``folder``: the folder, through fsspec
- ``comparison``: how a checkpoint differs from its log
- ``repair``: how the missing parts of a checkpoint are restored

Nothing here needs Spark.
"""
