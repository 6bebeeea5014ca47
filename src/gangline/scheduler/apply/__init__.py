"""Applies a cycle's result: binds pods and volumes, evicts victims, stores reservations.

Pods stay assumed on their nodes while bindings are in flight. Imports `cache` and below, and the
Kubernetes client.
"""
