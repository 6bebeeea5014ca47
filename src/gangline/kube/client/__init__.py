"""Typed verbs on resources (``client``), commands in containers (``exec``), port forwarding.

Imports ``kube.http``.
"""
