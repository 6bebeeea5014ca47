"""The verbs on stored objects: get, list, create, update, patch, delete, watch, and the
subresources.

Order: ``read``, ``delete``, ``apply``, ``write`` (the write path), ``responses`` (Table, metadata
only, YAML), ``rest`` (dispatch by verb), ``watch``, ``evictions``, ``subresources``. May import:
``admission``, ``watch``, ``auth``, ``storage``, ``core``.
"""
