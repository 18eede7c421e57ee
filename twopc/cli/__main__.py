"""The command as ``python -m twopc.cli``."""

from twopc.cli import main

main()
