"""Expressions of the Common Expression Language: Kubernetes' functions, and rules of schemas."""
