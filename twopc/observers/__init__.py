"""Observers for what others look at: each is a module, imported where it is used and registered by
``twopc.register_observer``. Every batch is told when it has finished; of one that failed none tells.
"""
