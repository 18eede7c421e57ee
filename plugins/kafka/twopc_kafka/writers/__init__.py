"""What writes the records of one transaction."""
