"""Observers that report to other systems. Each is a module of its own, imported where it is used and registered by
``twopc.register_observer``. They receive one ``BatchFinished`` per successful batch, one ``BatchFailed`` per failed
run, and ``BatchCommitted`` for what a batch has read and written.
"""
