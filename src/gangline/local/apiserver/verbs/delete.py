"""The effect of a deletion request on an object: removal, a deletion timestamp, or no change."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta import field_causes
from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.core.errors import StatusError, bad_request, invalid
from gangline.local.apiserver.core.negotiation import expect_object, expect_string
from gangline.local.apiserver.core.prepare import (
    DEFAULT_GRACE_S,
    FOREGROUND,
    ORPHAN,
    can_be_removed,
    format_timestamp,
)
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest

POLICIES = {"Foreground": FOREGROUND, "Orphan": ORPHAN, "Background": ""}


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """Options of a deletion request."""

    grace_s: int | None = None
    policy: str = ""
    uid: str = ""
    revision: str = ""
    dry_run: bool = False

    def to_delete_options(self) -> Json:
        """Return the given options as DeleteOptions."""
        given = {"uid": self.uid, "resourceVersion": self.revision}
        preconditions = {name: value for name, value in given.items() if value}
        options: Json = {"dryRun": ["All"]} if self.dry_run else {}
        if self.grace_s is not None:
            options["gracePeriodSeconds"] = self.grace_s
        if self.policy:
            options["propagationPolicy"] = self.policy
        return options | ({"preconditions": preconditions} if preconditions else {})


def read_deletion_request(request: ApiRequest, options: Any) -> DeletionRequest:
    """Parse DeleteOptions from the body, or else from the query. Raises StatusError: 400 or 422,
    the options are invalid.
    """
    given: Json = {"kind": "DeleteOptions", **expect_object(options, "DeleteOptions")}
    if given["kind"] != "DeleteOptions":
        raise bad_request(f"the body of a deletion must be DeleteOptions, not {given['kind']!r}")
    grace = given.get("gracePeriodSeconds")
    grace = request.int_param("gracePeriodSeconds") if grace is None else grace
    policy = expect_string(
        given.get("propagationPolicy"), "propagationPolicy"
    ) or request.params.get("propagationPolicy", "")
    orphan = given.get("orphanDependents")
    if orphan is None:
        orphan = request.optional_bool_param("orphanDependents")
    if policy and orphan is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        raise _invalid_options(field_causes.invalid("propagationPolicy", policy, detail))
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if not policy and request.kind.orphans:
        policy = "Orphan"
        request.warnings.append(
            f"pods are preserved by default when {request.kind.plural} are deleted; set "
            "propagationPolicy=Background to remove them, or propagationPolicy=Orphan to suppress "
            "this warning"
        )
    if policy and policy not in POLICIES:
        policies = (*sorted(POLICIES), "nil")
        raise _invalid_options(field_causes.unsupported("propagationPolicy", policy, policies))
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise bad_request("gracePeriodSeconds must be a number")
    expected = expect_object(given.get("preconditions"), "preconditions")
    uid = expect_string(expected.get("uid"), "preconditions.uid")
    revision = expect_string(expected.get("resourceVersion"), "preconditions.resourceVersion")
    dry_run = given.get("dryRun") or []
    if dry_run not in ([], ["All"]):
        raise _invalid_options(field_causes.unsupported("dryRun", dry_run, ("All",)))
    # API rule: a negative grace period means one second.
    grace = 1 if grace is not None and grace < 0 else grace
    return DeletionRequest(grace, policy, uid, revision, request.dry_run or bool(dry_run))


def _invalid_options(cause: StatusCause) -> StatusError:
    return invalid("meta.k8s.io", "DeleteOptions", "", [cause])


def apply_deletion(kind: ServedKind, obj: Json, deletion: DeletionRequest, now: datetime) -> bool:
    """Apply a deletion to ``obj`` in place. Returns True if it is to be removed immediately."""
    meta = obj["metadata"]
    _set_finalizers(meta, deletion.policy)
    if kind.kind == "Namespace" and not kind.group:
        obj.setdefault("status", {})["phase"] = "Terminating"
    elif kind.kind != "Pod" and can_be_removed(obj):
        return True  # as Kubernetes, without a time of deletion
    _set_grace(meta, _grace(kind, obj, deletion.grace_s), now)
    return can_be_removed(obj)


def _set_finalizers(meta: Json, policy: str) -> None:
    if not policy:
        return
    finalizer = POLICIES[policy]
    kept = [name for name in meta.get("finalizers", []) if name not in (FOREGROUND, ORPHAN)]
    finalizers = [*kept, finalizer] if finalizer else kept
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)


def _grace(kind: ServedKind, obj: Json, asked: int | None) -> int:
    """Return the grace period in seconds. Only pods that may be running have one."""
    if kind.kind != "Pod" or kind.group:
        return 0
    spec, status = obj.get("spec", {}), obj.get("status", {})
    if not spec.get("nodeName") or status.get("phase") in TERMINAL_PHASES:
        return 0
    usual = spec.get("terminationGracePeriodSeconds")
    grace = usual if asked is None else asked
    return DEFAULT_GRACE_S if grace is None else min(max(int(grace), 0), limits.MAX_PERIOD_S)


def _set_grace(meta: Json, grace_s: int, now: datetime) -> None:
    """Set the deletion timestamp. A second deletion can only shorten the remaining time."""
    if "deletionTimestamp" in meta:
        former = meta.get("deletionGracePeriodSeconds") or 0
        if grace_s >= former:
            return
        began = datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=former)
        meta["deletionTimestamp"] = format_timestamp(
            began.astimezone(UTC) + timedelta(seconds=grace_s)
        )
    else:
        meta["deletionTimestamp"] = format_timestamp(now + timedelta(seconds=grace_s))
        if "generation" in meta:
            meta["generation"] += 1
    meta["deletionGracePeriodSeconds"] = grace_s
