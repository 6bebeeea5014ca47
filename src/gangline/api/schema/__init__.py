"""Schemas made from structs (``openapi``), and manifests checked against them (``check``).

``field_error`` is the common form of an error in a manifest; ``field_table`` has the messages of
Kubernetes' built-in kinds. Imports ``api.meta`` and ``api.names``.
"""
