"""Kinds by which a cluster is configured: admission webhooks, CRDs, autoscalers, RBAC.

Imports ``api.meta``.
"""
