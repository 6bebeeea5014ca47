"""Errors and warnings that no schema can express.

``validate`` and ``warnings`` are the entry points. They use one module per kind (``jobs``,
``volcano``), which use ``common_rules``, ``replica_warnings`` and ``pod_template``.
"""
