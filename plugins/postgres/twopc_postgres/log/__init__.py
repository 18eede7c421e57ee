"""Commit logs in PostgreSQL."""
