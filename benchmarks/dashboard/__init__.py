"""Benchmarks of the dashboard."""
