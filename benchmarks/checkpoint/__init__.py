"""Benchmarks of checkpoints."""
