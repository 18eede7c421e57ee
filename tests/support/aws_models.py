"""Caches the service models of AWS's client, so that each is read once per process.

Each client that a test creates has its own session, which would otherwise parse megabytes of JSON again.
"""

import functools


def keep_models() -> None:
    """Share the models among all sessions of this process."""
    try:
        from botocore.loaders import JSONFileLoader
    except ImportError:  # an environment of a plugin without S3
        return
    load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: load(path)
