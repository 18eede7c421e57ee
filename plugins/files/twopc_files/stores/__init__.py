"""Where files are staged and published; one module for each kind of store."""
