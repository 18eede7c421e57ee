"""Observers that report to other systems. Each has its own module. Import it, and register the observer by
``twopc.register_observer``. Observers receive one ``BatchFinished`` per successful batch, one ``BatchFailed`` per
failed run, and ``BatchCommitted`` with the inputs and outputs of a batch.
"""
