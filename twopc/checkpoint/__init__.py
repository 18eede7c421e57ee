"""The parts of Spark's checkpoint folder that define what a batch reads: read, compared with the log, and restored.

- ``offsets``: Spark's offset log entries as JSON
- ``source_files``: the files that the offsets of a file source stand for
- ``folder``: the folder, through fsspec
- ``comparison``: how a checkpoint differs from its log
- ``repair``: how a checkpoint gets back what it lacks

Nothing here needs Spark.
"""
