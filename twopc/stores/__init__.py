"""Stores for the small files of twopc and its sinks: disks, object stores and HDFS.

- ``places``: folders that users name, and the client of each store
- ``folder``: the contract of a folder with put-if-absent; ``disk`` and ``remote`` implement it
- ``azure``, ``gcs``, ``webhdfs``, ``s3``: clients, or their errors, that are reliable enough for a commit
- ``errors``: what a store's error means
- ``mounts``: the guarantees of a folder's filesystem
"""
