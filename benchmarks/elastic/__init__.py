"""Benchmarks of elastic training: recovery, faults, master."""
