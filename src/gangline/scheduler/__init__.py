"""Pods to nodes: whole gangs or nothing."""
