"""Reads from the store: runs and similar runs, advice and actions, what models have learned."""
