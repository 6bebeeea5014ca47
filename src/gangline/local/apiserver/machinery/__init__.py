"""Objects as plain JSON: pure functions, no I/O, no clock.

Objects are decoded JSON (``Json = dict[str, Any]``), schemas are structural OpenAPI v3 dicts.
Functions documented as *in place* change their argument, which the server has just decoded. Field
errors are ``gangline.api.meta.objects.StatusCause`` values, and all of them are returned together.
``now`` is always an aware datetime.

Low to high: ``schema`` (pruning, defaulting and validation by schema, compiled), ``patches``,
``openapi``, ``encoding`` (JSON and protobuf bodies), ``managed_fields``, ``server_side_apply``,
``defaults`` and ``validation`` (rules of built-in kinds beyond their schema), ``printing`` (the
Table of ``kubectl get``).
"""
