"""Objects as plain JSON: pure functions, no I/O, no clock.

Objects are decoded JSON (``Json = dict[str, Any]``), schemas are structural OpenAPI v3 dicts.
Functions documented as *in place* change their argument, which the server has just decoded. Field
errors are ``gangline.api.meta.objects.StatusCause`` values, and all of them are returned together.
``now`` is always an aware datetime.

Packages, low to high: ``schema`` (pruning, defaulting and validation by schema, compiled),
``patch`` (JSON, merge and strategic merge patches), ``openapi``, ``protobuf`` (request bodies of
newer kubectl), ``apply`` (server-side apply, managed fields), ``defaults`` and ``validation``
(rules of built-in kinds beyond their schema), ``printing`` (the Table of ``kubectl get``).
"""
