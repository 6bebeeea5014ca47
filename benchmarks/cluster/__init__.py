"""Benchmarks of the embedded cluster and its API server."""
