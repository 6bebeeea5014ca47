"""Deployment controller: scales ReplicaSets so that a roll-out stays within maxSurge and
maxUnavailable.

``plan`` (pure) compares a Deployment with its ReplicaSets; ``controller`` watches and writes. It
imports the ReplicaSet type and adoption from ``replica_sets``.
"""
