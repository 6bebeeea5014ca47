"""Paths that are not stored objects: discovery, OpenAPI, version, health, metrics.k8s.io, access
reviews.

``non_resource`` has discovery, OpenAPI and health; ``access_reviews`` and ``metrics_api`` are kinds
that are computed. May import: ``verbs``, ``kubelet_proxy``, ``auth``, ``storage``, ``core``.
"""
