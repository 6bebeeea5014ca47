"""Probes and lifecycle hooks of running containers.

``state`` (pure) counts results against thresholds, ``handlers`` runs one probe or hook, ``worker``
runs all probes of a container and records their results.
"""
