"""Gangline: distributed training on Kubernetes."""
