"""Validation of built-in kinds beyond their schema, with the wording of Kubernetes.

Order: ``metadata`` (names, labels, shared rules), ``pods``, ``webhooks``, ``workloads``,
``builtin`` (the entry points and all small kinds). Functions yield every error they find; wrong
JSON types are left to the schema. May import: ``machinery.schema``, ``machinery.json_objects``,
``machinery.quantities``, ``machinery.field_errors``.
"""
