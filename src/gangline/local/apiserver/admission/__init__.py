"""Admission: rules that depend on other objects, and the configured admission webhooks.

Policies: ``builtin`` (namespace, priority, service address), ``node_restriction``,
``pod_security``, ``certificate_signers``. Webhooks: ``webhook_call`` (one call), ``webhooks``
(calling order, reinvocation, time limit). May import: ``crds``, ``storage``, ``core``,
``machinery``.
"""
