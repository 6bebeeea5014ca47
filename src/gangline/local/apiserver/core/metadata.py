"""Metadata that the server itself writes.

Generated names, identity and time of creation, generations, the fields that an update must not
change, and whether an object may be removed.
"""

import secrets
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from gangline.local.apiserver.core.registry import Json, ServedKind

SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH: Final = 5
MAX_GENERATED_NAME: Final = 63
FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
DEFAULT_GRACE_S: Final = 30
SYSTEM_METADATA_FIELDS: Final = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "namespace", "name", "generateName",
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
        if name in old_meta:
            new_meta[name] = old_meta[name]
        else:
            new_meta.pop(name, None)


def restrict_to_main(kind: ServedKind, old: Json, new: Json) -> None:
    """Undo changes that an update of the main resource must not make: those to the status."""
    if kind.resets_status:
        restore_field(old, new, "status")
    if kind.kind == "Namespace" and not kind.group:
        restore_field(old, new, "spec")


def restrict_to_finalize(kind: ServedKind, old: Json, new: Json) -> None:
    """Undo changes to the status, which the finalize subresource must not make."""
    restore_field(old, new, "status")


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
