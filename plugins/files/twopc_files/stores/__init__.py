"""The stores that write and publish pending files: one module per kind of store."""
