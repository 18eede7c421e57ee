"""Runs the command line for ``python -m twopc.cli``."""

from twopc.cli import main

main()
