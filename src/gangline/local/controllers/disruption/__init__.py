"""Disruption controller: keeps the status of PodDisruptionBudgets, which admits or denies
evictions.

``plan`` (pure) counts healthy pods; ``controller`` watches budgets and pods, and writes the status.
"""
