"""Where pending files are written and published: one module per kind of store."""
