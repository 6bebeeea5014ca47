"""Authentication, authorization, and the certificates that both rest on.

Order: ``pki`` (authority, server and admin certificates), ``authentication`` (certificates,
tokens), ``rbac``. May import: ``storage``, ``core``.
"""
