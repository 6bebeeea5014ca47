"""What the API server knows about objects as plain JSON: pure functions, no I/O, no clock.

Objects are the decoded JSON (``Json = dict[str, Any]``), schemas are structural OpenAPI v3 dicts.
Functions that say *in place* change their argument, which the server has just decoded; nothing
else is changed. Mistakes in fields are ``gangline.api.meta.StatusCause`` values, all of them at
once. ``now`` is an aware datetime.

``field_errors``      required(path) invalid(path, value, detail) … -> StatusCause;
                      invalid_status(group, kind, name, causes) -> Status (422)
``structural``        StructuralSchema(schema), compiled once per kind:
                      .prune(obj) -> list[str]            in place; the paths that were dropped
                      .unknown_fields(obj) -> list[str]   the same paths, nothing changed
                      .apply_defaults(obj) -> None        in place
                      .validate(obj) -> list[StatusCause]
                      .schema                             the dict it was made of
``patches``           json_patch(document, operations) -> Json
                      merge_patch(document, patch) -> Json
                      create_merge_patch(old, new) -> Json
                      all raise PatchError (.code, .reason, .message); the argument stays as it was
``strategic``         strategic_merge_patch(document, patch, schema) -> Json; raises PatchError
``apply``             apply(live, applied, schema, *, manager, now, force=False, subresource="")
                      -> Json, the new object with managedFields (``live`` None: it is created);
                      raises ApplyConflict (.message, .causes) or ApplyError (.message; 400)
``ownership``         track_update(old, new, schema, *, manager, now, subresource="") -> None
                      in place on ``new``; old None: created
                      worth_tracking(old, manager) -> bool: ask first, it keeps the hot path cheap
                      manager_of(user_agent, field_manager) -> str
``table``             printer_for(group, kind, additional_columns=None) -> Printer
                      render_table(printer, objects, *, now, include_object="Metadata",
                                   metadata=None, with_columns=True) -> Json (meta.k8s.io/v1 Table)
                      partial_object(obj) -> Json, partial_object_list(list_) -> Json
``durations``         human_duration(seconds) -> "5m12s", age(timestamp, now)
``jsonpath``          JSONPath(".status.conditions[-1:].type").find(obj) -> list[Any]
``openapi``           OpenAPIEntry(group, version, kind, plural, namespaced, schema, …)
                      openapi_v2(entries, *, title, version) -> Json
                      openapi_v3_index(entries) -> Json, openapi_v3(entries, group, version) -> Json
``protobuf_bodies``   decode_body(bytes) -> Json; raises ProtobufError, UnknownKind
``openapi_protobuf``  openapi_v2_protobuf(document) -> bytes
``core_defaults``     apply_core_defaults(group, kind, obj) -> None   in place, built-in kinds
                      normalize(group, kind, obj) -> None   in place, before ``apply``
                      initial_status(group, kind, obj) -> Json | None
``core_validation``   validate_create(group, kind, obj, namespaced) -> list[StatusCause]
                      validate_update(group, kind, old, new, namespaced, subresource="")
                      -> list[StatusCause]; metadata of every kind, the rest of built-in kinds
"""
