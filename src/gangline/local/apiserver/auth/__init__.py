"""Authentication, authorization, and the certificates that both rest on.

Order: ``pki`` (authority, server and admin certificates), ``service_account_tokens``,
``authentication`` (certificates, tokens), ``rbac``. May import: ``storage``, ``core``.
"""
