"""The commit log: its entries, where they are stored, and what a batch read."""
