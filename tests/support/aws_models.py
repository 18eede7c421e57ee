"""The models that AWS's client has of services: each is read once per process.

Each client that a test makes has a session of its own, which would read and parse megabytes of JSON anew.
"""

import functools


def keep_models() -> None:
    """Have every session of this process share what was read, as the clients of one session do."""
    try:
        from botocore.loaders import JSONFileLoader
    except ImportError:  # an environment for a plugin without S3
        return
    load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: load(path)
