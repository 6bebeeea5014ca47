"""Authentication, authorization, and the certificates that both rest on.

Order: ``pki`` (authority, server and admin certificates), ``authentication``, ``rules`` (what
policy rules allow), ``builtin_roles``, ``node_authorizer`` (rights and certificates of kubelets),
``rbac`` (the authorizer, escalation, impersonation). May import: ``storage``, ``core``.
"""
