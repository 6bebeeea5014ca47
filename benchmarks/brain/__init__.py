"""Benchmarks of the Brain."""
