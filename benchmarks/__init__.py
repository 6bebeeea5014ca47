"""Benchmarks: each prints a ratio against a peer measured in the same run on the same machine."""
