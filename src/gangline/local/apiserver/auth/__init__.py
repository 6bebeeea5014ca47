"""Authentication, authorization, and the certificates that both rest on.

Order: ``pki`` (authority, server and admin certificates), ``service_account_tokens``,
``authentication`` (certificates, tokens), ``rules`` (what policy rules allow), ``builtin_roles``,
``role_reconciliation`` and ``aggregation`` (the content of roles), ``node_pods`` and
``node_authorizer`` (rights of kubelets), ``rbac`` (the authorizer), ``impersonation`` and
``escalation`` (checks of requests). May import: ``storage``, ``core``.
"""
