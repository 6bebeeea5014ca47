"""Volcano's kinds: PodGroup and Queue (``scheduling``), HyperNode (``topology``).

Imports ``api.meta``.
"""
