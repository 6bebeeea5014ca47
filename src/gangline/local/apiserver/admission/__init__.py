"""Admission: rules that depend on other objects, and the configured admission webhooks.

Order: ``builtin`` (namespace, priority, service address), ``webhook_match`` (rules and selectors),
``webhook_review`` (AdmissionReview), ``webhook_client`` (one POST), ``webhooks`` (calling order,
reinvocation, time limit). May import: ``crds``, ``storage``, ``core``, ``machinery``.
"""
