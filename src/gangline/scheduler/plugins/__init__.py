"""Placement policies, one per file: which nodes a pod may use, and which of them is best."""
