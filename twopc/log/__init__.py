"""The commit log: its entries, their storage, and the identity of batches."""
