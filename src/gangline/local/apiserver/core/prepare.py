"""Steps between a request body and a stored object, each as a small function.

Identity (type, namespace, generated name, UID, time of creation), fields that an update must not
change, generations, unknown fields, defaults, validation, size, managed fields, and whether an
object may be removed.
"""

import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from gangline.api.meta import field_causes
from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.core.errors import bad_request, invalid, too_large
from gangline.local.apiserver.core.negotiation import (
    JSON_PATCH,
    MIN_VALUE_BYTES,
    check_document,
    encode_json,
    find_duplicate_fields,
    is_small_document,
)
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.defaults import apply_builtin_defaults
from gangline.local.apiserver.machinery.managed_fields import (
    manager_name,
    should_track,
    track_update,
)
from gangline.local.apiserver.machinery.schema.value_rules import is_time
from gangline.local.apiserver.machinery.validation.builtin import validate_create, validate_update
from gangline.local.apiserver.machinery.validation.metadata import SET_BY_DELETION

SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH: Final = 5
MAX_GENERATED_NAME: Final = 63
FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
DEFAULT_GRACE_S: Final = 30
SYSTEM_METADATA_FIELDS: Final = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "namespace", "name",
)  # fmt: skip


def format_timestamp(now: datetime) -> str:
    """Return a time in the notation of Kubernetes: UTC, in seconds."""
    return now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def generate_name(prefix: str) -> str:
    base = prefix[: MAX_GENERATED_NAME - SUFFIX_LENGTH]
    return base + "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(SUFFIX_LENGTH))


def set_creation_metadata(kind: ServedKind, meta: Json, now: datetime) -> None:
    for name in ("resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(name, None)
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = format_timestamp(now)
    meta.pop("generation", None)
    if kind.counts_generations:
        meta["generation"] = 1


def preserve_system_metadata(old: Json, new: Json) -> None:
    """Restore the metadata that clients must not change, in place."""
    old_meta, new_meta = old["metadata"], new["metadata"]
    new_meta.pop("selfLink", None)
    for name in SYSTEM_METADATA_FIELDS:
        if name == "uid" and new_meta.get(name):
            continue  # which the validation compares
        if name in old_meta:
            new_meta[name] = old_meta[name]
        elif name not in SET_BY_DELETION:  # an error of the validation
            new_meta.pop(name, None)


def restrict_to_main(kind: ServedKind, old: Json, new: Json) -> None:
    """Undo changes that an update of the main resource must not make: those to the status."""
    if kind.resets_status:
        restore_field(old, new, "status")
    if kind.kind == "Namespace" and not kind.group:
        restore_field(old, new, "spec")


def restrict_to_status(kind: ServedKind, old: Json, new: Json) -> None:
    """Undo changes that the status subresource must not make: those to anything but the status."""
    for name in {*old, *new} - {"status", "metadata", "apiVersion", "kind"}:
        restore_field(old, new, name)
    kept = old["metadata"]
    if kind.custom:
        managed = new["metadata"].get("managedFields")
        new["metadata"] = dict(kept)
        if managed is not None:
            new["metadata"]["managedFields"] = managed
    else:
        restore_field(kept, new["metadata"], "ownerReferences")


def restore_field(old: Json, new: Json, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def increment_generation(kind: ServedKind, old: Json, new: Json) -> None:
    """Increment the generation in place if the desired state changed."""
    if not kind.counts_generations:
        return
    if _desired_state(kind, old) != _desired_state(kind, new):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _desired_state(kind: ServedKind, obj: Json) -> Any:
    left_out = {"metadata", "status"} if kind.resets_status else {"metadata"}
    if kind.kind == "Pod" and not kind.group:  # a binding is no change of it
        return {name: value for name, value in obj["spec"].items() if name != "nodeName"}
    if not kind.custom:
        return obj.get("spec", obj.get("webhooks"))
    return {name: value for name, value in obj.items() if name not in left_out}


def is_unchanged(old: Json, new: Json) -> bool:
    """Return True if an update changes nothing but the resource version."""
    if old.keys() != new.keys():
        return False
    if any(old[name] != new[name] for name in old if name != "metadata"):
        return False
    return _without_revision(old["metadata"]) == _without_revision(new["metadata"])


def _without_revision(meta: Json) -> Json:
    return {name: value for name, value in meta.items() if name != "resourceVersion"}


def is_deleting(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def can_be_removed(obj: Json) -> bool:
    """Return True if no finalizer and no grace period delay the removal of a deleted object."""
    meta = obj["metadata"]
    spec = obj.get("spec")
    is_namespace = obj.get("kind") == "Namespace" and isinstance(spec, dict)
    held = bool(is_namespace and spec and spec.get("finalizers"))
    return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds") and not held


SIZE_CHECK_FROM_BYTES = limits.MAX_OBJECT_BYTES // 4
SMALL_RESULT_BYTES = MIN_VALUE_BYTES * limits.MAX_VALUES // 2
"""An object of at most this size has less than half of the values of the largest document."""
VALIDATION_MODES = ("", "Ignore", "Warn", "Strict")
MAX_WARNINGS = 20
OMITTED_WHEN_EMPTY: Mapping[str, Any] = {
    "labels": {},
    "annotations": {},
    "finalizers": [],
    "ownerReferences": [],
}
"""Empty and absent mean the same for these fields. Only absent is stored, so that tools that
compare objects see no difference.
"""


def check_identity(request: ApiRequest, obj: Any) -> Json:
    """Check kind, name and namespace of a body and return its metadata. Raises StatusError: 400,
    the body is not an object of the requested kind, name and namespace.
    """
    kind = request.kind
    if not isinstance(obj, dict):
        raise bad_request(f"the body of the request must be a {kind.kind} object")
    given = (obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind)
    if given != (kind.api_version, kind.kind):
        raise bad_request(
            f"{given[1]} in version {given[0]!r} cannot be handled as a {kind.kind} "
            f"in version {kind.api_version!r}"
        )
    obj["apiVersion"], obj["kind"] = given
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    meta = obj["metadata"]
    if not isinstance(meta, dict):
        raise bad_request("metadata must be an object")
    for name, empty in OMITTED_WHEN_EMPTY.items():
        if meta.get(name, name) in (empty, None):
            del meta[name]
    for name in ("creationTimestamp", "deletionTimestamp"):
        if not is_time(meta.get(name) or "1970-01-01T00:00:00Z"):
            raise bad_request(f"metadata.{name} must be a time such as 2026-01-31T12:00:00Z")
    _check_namespace(request, meta)
    if request.verb != "create" and not meta.get("name"):
        raise bad_request(
            f"the name of the object ({request.name} based on URL) was undeterminable: "
            "name must be provided"
        )
    if request.verb != "create" and meta["name"] != request.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL "
            f"({request.name})"
        )
    return meta


def _check_namespace(request: ApiRequest, meta: Json) -> None:
    if not request.kind.namespaced:
        meta.pop("namespace", None)
    elif meta.get("namespace") in (None, "", request.namespace):
        meta["namespace"] = request.namespace
    else:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def assign_name(request: ApiRequest, meta: Json) -> None:
    """Set the name of a new object in ``meta`` and in ``request``. Raises StatusError: 422, it is
    no text.
    """
    name, prefix = meta.get("name"), meta.get("generateName")
    if not name and isinstance(prefix, str) and prefix:
        name = meta["name"] = generate_name(prefix)
    if name and not isinstance(name, str):
        kind = request.kind
        raise invalid(kind.group, kind.kind, "", kind.schema.validate({"metadata": meta}))
    request.name = meta["name"] = name or ""  # an empty one is an error of the validation


def prune_unknown_fields(request: ApiRequest, obj: Json) -> None:
    """Remove unknown fields in place; warn or refuse as the client requested. Raises StatusError:
    400, unknown or duplicate fields with strict field validation.
    """
    mode = request.params.get("fieldValidation", "")
    if mode not in VALIDATION_MODES:
        raise bad_request(f"fieldValidation: Unsupported value: {mode!r}: Ignore, Warn or Strict")
    unknown = request.kind.schema.prune(obj)
    if mode == "Ignore":
        return
    warnings = [f'unknown field "{path}"' for path in unknown]
    if mode:  # the default is Warn too, but costs most writes more than their decoding
        warnings += find_duplicate_fields(request.body, request.content_type)
    if warnings and mode == "Strict":
        kind = request.kind
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {', '.join(warnings)}"
        )
    request.warnings += [text for text in warnings[:MAX_WARNINGS] if text not in request.warnings]


def apply_defaults(kind: ServedKind, obj: Json) -> None:
    """Set the defaults of an object in place."""
    if kind.custom:
        kind.schema.apply_defaults(obj)
    else:
        apply_builtin_defaults(kind.group, kind.kind, obj)


@contextmanager
def report_type_errors(kind: ServedKind, obj: Json) -> Iterator[None]:
    """Convert an exception caused by a value of the wrong type into a field error.

    Checking all types first would slow down every valid object. The schema is evaluated only after
    an exception, and finds the wrong value. Raises StatusError: 422.
    """
    try:
        yield
    except (TypeError, AttributeError, KeyError, ValueError):
        causes = kind.schema.validate(obj)
        if not causes:
            raise
        raise invalid(kind.group, kind.kind, _name(obj), causes) from None


def _name(obj: Json) -> str:
    meta = obj.get("metadata")
    return str(meta.get("name", "")) if isinstance(meta, dict) else ""


def validate_creation(kind: ServedKind, obj: Json) -> None:
    """Refuse an invalid new object with all its errors. Raises StatusError: 422."""
    causes = _all_causes(
        kind.schema.validate(obj),
        lambda: validate_create(kind.group, kind.kind, obj, kind.namespaced, custom=kind.custom),
    )
    causes = causes or kind.rule_causes(obj, None)
    if causes:
        raise invalid(kind.group, kind.kind, _name(obj), causes)


def _all_causes(
    found: list[StatusCause], validate: Callable[[], list[StatusCause]]
) -> list[StatusCause]:
    """Add the errors of the kind's rules to those of its schema. Type errors are reported alone:
    the rules expect valid types.
    """
    if any(cause.reason == "FieldValueTypeInvalid" for cause in found):
        return found
    fields = {cause.field for cause in found}
    more = [cause for cause in validate() if cause.field not in fields]
    # A struct of Go is never absent: only what is missing in it is reported.
    below = tuple(cause.field for cause in more)
    structs = {f for f in fields if any(place.startswith(f"{f}.") for place in below)}
    return [cause for cause in found if cause.field not in structs] + more


def validate_change(request: ApiRequest, old: Json, new: Json) -> None:
    """Refuse an invalid change with all its errors. Raises StatusError: 422."""
    kind = request.kind
    causes = _all_causes(
        kind.schema.validate(new),
        lambda: validate_update(
            kind.group, kind.kind, old, new, kind.namespaced, request.subresource,
            custom=kind.custom,
        ),
    )  # fmt: skip
    causes = causes or kind.rule_causes(new, old)
    if causes:
        raise invalid(kind.group, kind.kind, request.name, causes)


def reject_unconditional(request: ApiRequest) -> None:
    """Refuse an update of a custom object without a resource version. Raises StatusError: 422."""
    cause = field_causes.invalid("metadata.resourceVersion", 0, "must be specified for an update")
    raise invalid(request.kind.group, request.kind.kind, request.name, [cause])


def check_patched(request: ApiRequest, obj: Json, before_bytes: int) -> None:
    """Refuse the result of a patch that is beyond the limits of a document or of an object.

    Patches within the limits may build such an object, one after the other. ``before_bytes`` is the
    size of the object that was patched. Only a JSON patch copies values or moves them to another
    depth, so that the results of small patches of other kinds are within the limits. Raises
    StatusError: 400 or 413.
    """
    media = request.content_type.partition(";")[0].strip().lower()
    if media != JSON_PATCH and before_bytes + len(request.body) <= SMALL_RESULT_BYTES:
        return
    encoded = encode_json(obj)
    if len(encoded) > limits.MAX_OBJECT_BYTES:
        raise too_large(limits.MAX_OBJECT_BYTES)
    if not is_small_document(encoded):
        check_document(obj)


def check_size(request: ApiRequest, obj: Json, *, may_have_grown: bool = False) -> None:
    """Refuse an object that is too large to store.

    Encoding takes time, so it is skipped for small requests unless the object is more than the
    request: a patch adds to a large one, and a webhook adds to any. Raises StatusError: 413.
    """
    if (may_have_grown or len(request.body) > SIZE_CHECK_FROM_BYTES) and len(
        encode_json(obj)
    ) > limits.MAX_OBJECT_BYTES:
        raise too_large(limits.MAX_OBJECT_BYTES)


def track_managed_fields(request: ApiRequest, old: Json | None, new: Json, at: datetime) -> None:
    """Record in place which fields the client has set."""
    kind = request.kind
    manager = manager_name(request.user_agent, request.params.get("fieldManager", ""))
    # Versions of a custom kind have the same fields, so they can be recorded as they were written.
    version = kind.api_version if kind.custom and not kind.is_stored_form else ""
    if should_track(old, manager, version):
        track_update(
            old,
            new,
            kind.schema.schema,
            manager=manager,
            now=at,
            subresource=request.subresource,
            api_version=version,
        )
    elif old is not None:
        restore_field(old["metadata"], new["metadata"], "managedFields")
