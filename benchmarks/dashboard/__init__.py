"""Benchmarks of the client library and the command line."""
