"""Errors and warnings that no schema can express.

``validate`` has the entry points. It uses one module per kind
(``jobs``), which use ``common_rules`` and ``replica_warnings``. ``pods`` and ``field_rules`` have
the wording of Kubernetes; the embedded API server uses them too.
"""
