"""Where twopc and its sinks keep small files: disks, object stores and HDFS.

- ``places``: folders that users name, and the client of each store
- ``folder``: the contract of a folder with put-if-absent; ``disk`` and ``remote`` have the folders
- ``azure``, ``gcs``, ``webhdfs``, ``s3``: clients, or their errors, as a commit can rest on them
- ``errors``: what an error of a store means
- ``mounts``: what the filesystem of a folder can be relied on for
"""
