"""Resource types: what the objects are. No I/O, nothing of ours outside this package."""
