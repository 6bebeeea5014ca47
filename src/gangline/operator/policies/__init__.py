"""Policies of a job's life, one per module: pure functions over the common form."""
