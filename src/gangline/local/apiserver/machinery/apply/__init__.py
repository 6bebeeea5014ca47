"""Server-side apply and the ownership of fields (``metadata.managedFields``).

Order: ``field_sets`` (sets of field paths, ``fieldsV1``), ``managed_fields`` (the entries of
writers), ``server_side_apply`` (merge, conflicts). May import: ``machinery.patch``,
``machinery.schema``.
"""
