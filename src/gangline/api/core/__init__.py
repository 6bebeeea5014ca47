"""Kinds of the groups core, apps, coordination, events, policy and scheduling of Kubernetes.

Order: references, containers and volumes, then pods, then what contains pods. Imports ``api.meta``.
"""
