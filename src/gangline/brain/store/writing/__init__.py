"""Writes to the store: facts, advice and actions, what models have learned."""
