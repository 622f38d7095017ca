"""Evidence records, statistics and the machine envelope."""
