"""Files as a two-phase-commit sink of twopc."""
