"""Validation of built-in kinds beyond their schema, with the wording of Kubernetes.

Order: ``metadata``, ``webhooks``, ``workloads``, ``builtin`` (the entry points and small kinds);
the rules of pods and of single fields are in ``gangline.api.validation``. Functions yield every
error they find; wrong JSON types are left to the schema.
"""
