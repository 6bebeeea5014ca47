"""The verbs on stored objects: get, list, create, update, patch, delete, watch, and the
subresources.

Order: ``read``, ``delete``, ``write`` (the write path), ``rest`` (dispatch by verb), ``watch``,
``subresources``. May import: ``admission``, ``watch``, ``auth``, ``storage``, ``core``.
"""
