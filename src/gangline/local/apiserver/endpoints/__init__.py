"""Paths that are not stored objects: discovery, OpenAPI, version, health, metrics.k8s.io, access
reviews.

Order: ``discovery``, ``openapi``, ``access_reviews``, ``metrics_api``, ``non_resource`` (dispatch
by path). May import: ``verbs``, ``kubelet_proxy``, ``auth``, ``storage``, ``core``, ``metrics``.
"""
