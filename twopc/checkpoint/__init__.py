"""The parts of Spark's checkpoint folder that say what a batch reads: read, compared with the log, and written back.

``offsets`` has Spark's offset log entries as JSON, ``source_files`` the files that offsets of a file source are numbers
of, ``folder`` the folder through fsspec, ``repair`` what a folder lacks and how it gets it back. Nothing here needs
Spark.
"""
