"""The write path: create, update, patch, apply, delete.

Invariant: between reading the current state and staging the new one, the event loop does not
switch tasks, so no other write intervenes. Optimistic concurrency only concerns what clients saw.
The wait for the commit comes afterwards.

Webhook calls do switch tasks, and so do long computations, which run in a thread. After them the
current state is compared with the one that the write is based on. If it changed, the write starts
again, as in Kubernetes, until the webhooks' time limit.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from gangline.api.meta.field_causes import required
from gangline.api.meta.objects import StatusDetails
from gangline.local.apiserver.admission.builtin import BuiltinAdmission
from gangline.local.apiserver.admission.certificate_signers import (
    complete_signing_request,
    restrict_signing_request,
)
from gangline.local.apiserver.admission.conversion_webhooks import ConversionWebhooks
from gangline.local.apiserver.admission.node_restriction import restrict_node_write
from gangline.local.apiserver.admission.webhooks import (
    CREATE,
    DELETE,
    UPDATE,
    WebhookAdmission,
    WebhookReview,
)
from gangline.local.apiserver.core import conversion, prepare
from gangline.local.apiserver.core.errors import (
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    status_error,
)
from gangline.local.apiserver.core.negotiation import (
    encode_json,
    read_json,
    read_json_document,
    read_yaml,
)
from gangline.local.apiserver.core.prepare import prune_unknown_fields
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.flowcontrol import FlowController, is_long
from gangline.local.apiserver.machinery.defaults import normalize_builtin
from gangline.local.apiserver.machinery.schema.nodes import copy_json
from gangline.local.apiserver.machinery.server_side_apply import (
    ApplyConflict,
    ApplyError,
    server_side_apply,
)
from gangline.local.apiserver.quota import QUOTAS, QuotaAdmission, QuotaCharge
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ObjectRevision, WatchCache
from gangline.local.apiserver.verbs.delete import DeletionRequest, apply_deletion

APPLY_PATCHES = ("application/apply-patch+yaml",)


def read_apply_patch(request: ApiRequest) -> Json:
    """Parse and check an applied configuration. Raises StatusError: there is no field manager, the
    body is not an object, or has managedFields.
    """
    if not request.params.get("fieldManager"):
        cause = required("fieldManager", "is required for apply patch")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    body = request.body.lstrip()
    applied: Any = read_json_document(body) if body.startswith(b"{") else read_yaml(body)
    if not isinstance(applied, dict) or not isinstance(applied.get("metadata", {}), dict):
        raise bad_request("an applied configuration must be an object")
    if not applied.get("kind") or not applied.get("apiVersion"):
        raise bad_request("an applied configuration must name its apiVersion and kind")
    meta = applied.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    meta.setdefault("name", request.name)
    if request.kind.namespaced:
        meta.setdefault("namespace", request.namespace)
    return applied


def apply_configuration(request: ApiRequest, live: Json | None, applied: Json) -> Json:
    """Return the object with the configuration applied. ``live`` is None for a new object. Raises
    StatusError: 409, other managers own fields that would change.
    """
    kind = request.kind
    given: Json = copy_json(applied)
    revision = given["metadata"].pop("resourceVersion", None)
    if request.subresource == "status":
        given = {k: given[k] for k in ("apiVersion", "kind", "metadata", "status") if k in given}
    elif kind.resets_status:
        given.pop("status", None)
    if unknown := kind.schema.prune(given):
        raise bad_request(
            f"failed to create typed patch object ({request.key}; {kind.api_version}, "
            f"Kind={kind.kind}): .{unknown[0]}: field not declared in schema"
        )
    prune_unknown_fields(request, given)  # duplicate ones
    if not kind.custom:
        normalize_builtin(kind.group, kind.kind, given)
    try:
        merged = server_side_apply(
            live,
            given,
            kind.schema.schema,
            manager=request.params["fieldManager"],
            now=datetime.now(UTC),
            force=request.bool_param("force"),
            subresource=request.subresource,
        )
    except ApplyConflict as error:
        details = StatusDetails(causes=error.causes)
        raise status_error(409, "Conflict", error.message, details) from None
    except ApplyError as error:
        raise bad_request(error.message) from None
    if revision:
        merged["metadata"]["resourceVersion"] = revision
    return merged


MODIFIED_MESSAGE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)

ChangeFunction = Callable[[Json], Json]
"""Returns the new object for the current one, which it must not change."""


RESTRICTIONS: Mapping[str, Callable[[ServedKind, Json, Json], None]] = {
    "": prepare.restrict_to_main,
    "status": prepare.restrict_to_status,
    "finalize": lambda _, old, new: prepare.restore_field(old, new, "status"),
}

REVIEWED_SUBRESOURCES = ("", "status", "finalize", "approval")
"""Subresources whose body is an object of the kind."""
CRD_PLURAL = "customresourcedefinitions"
EMPTY_INDEX: dict[str, str] = {}


class WriteRule(Protocol):
    """A rule for writes that depends on their user or on other objects."""

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse a write, or add warnings to it. ``old`` is None for a creation. Raises
        StatusError: the rule forbids the write.
        """


class WriteResult(NamedTuple):
    """The result of a write: the object's bytes, and whether it was created or removed."""

    body: bytes
    created: bool = False
    removed: bool = False


def utc_now() -> datetime:
    return datetime.now(UTC)


class WritePath:
    """The write path over a store. A creation and an update have the same steps:

    1. Make the new object of the request: names, pruned fields, defaults.
    2. Mutating webhooks. What they return is treated like the body of a client: step 1 again.
    3. Complete it: system metadata, built-in admission, managed fields, validation.
    4. Rules of the user (node restriction, escalation, signers, Pod Security).
    5. Validating webhooks: they see the object as it will be stored.
    6. If tasks may have been switched since step 1, check again what was read of the store: a
       creation its namespace and what admission depends on, an update that its base is current.
       Otherwise the update starts again with step 1.
    7. Admit to the quotas and stage, without a switch of tasks since step 6.
    """

    def __init__(
        self,
        store: ObjectStore,
        admission: BuiltinAdmission,
        flow: FlowController,
        webhooks: WebhookAdmission | None = None,
        quotas: QuotaAdmission | None = None,
        rules: Sequence[WriteRule] = (),
        conversions: ConversionWebhooks | None = None,
    ) -> None:
        """Without the last four nothing is asked: the server's own writes use this."""
        self._compute = flow.compute_by_size
        self._store = store
        self._admission = admission
        self._webhooks = webhooks
        self._quotas = quotas
        self._rules = rules
        self._conversions = conversions

    async def create(
        self, request: ApiRequest, obj: Json, *, owner_tracked: bool = False
    ) -> WriteResult:
        """Store a new object. Raises StatusError: it exists, it is invalid, or a rule or a webhook
        forbids it.
        """
        kind = request.kind
        prepare.check_identity(request, obj)
        size = len(request.body)
        review = self._review(request, CREATE)
        if review is not None:
            obj = await self._compute(request.user, size, self._prepare_new, request, obj)
            obj = conversion.from_stored(kind, await review.mutate(None, obj) or obj)
        obj = await self._compute(
            request.user, size, self._complete_new, request, obj, owner_tracked
        )
        restrict_node_write(request, None, obj)
        self._check_rules(request, None, obj)
        if review is not None:
            prepare.check_size(request, obj, may_have_grown=True)
            await review.validate(None, obj)
        converted = await self._to_stored(kind, obj)
        if review is not None or converted is not obj or is_long(size):
            # Objects on which these rules depend may have changed meanwhile.
            self._check_namespace(request)
            if kind.plural != CRD_PLURAL:  # depends on no object, and takes long
                self._admission.admit_creation(kind, obj)
        if self._cache(request).latest(request.key) is not None:
            raise already_exists(kind.plural, kind.group, request.name)
        charges = self._admit_quota(request, None, obj)
        return await self._commit(request, converted, created=True, charges=charges)

    def _prepare_new(self, request: ApiRequest, obj: Json) -> Json:
        kind = request.kind
        self._check_namespace(request)
        prepare.prune_unknown_fields(request, obj)
        obj = conversion.to_stored(kind, obj)
        with prepare.report_type_errors(kind, obj):
            prepare.apply_defaults(kind, obj)
        return obj

    def _complete_new(self, request: ApiRequest, obj: Json, owner_tracked: bool) -> Json:
        kind = request.kind
        meta = prepare.check_identity(request, obj)
        prepare.assign_name(request, meta)
        self._check_namespace(request)
        prepare.prune_unknown_fields(request, obj)
        if kind.note:
            request.warnings.append(kind.note)
        has_revision = bool(meta.get("resourceVersion"))
        prepare.set_creation_metadata(kind, meta, utc_now())
        complete_signing_request(request, obj)
        obj = conversion.to_stored(kind, obj)
        with prepare.report_type_errors(kind, obj):
            prepare.apply_defaults(kind, obj)
            self._admission.admit_creation(kind, obj)
            if not owner_tracked:
                prepare.track_managed_fields(request, None, obj, utc_now())
        prepare.validate_creation(kind, obj)
        if has_revision:
            raise bad_request("resourceVersion should not be set on objects to be created")
        prepare.check_size(request, obj)
        return obj

    async def update(
        self, request: ApiRequest, make: ChangeFunction, *, owner_tracked: bool = False
    ) -> WriteResult:
        """Replace an object by the result of ``make``. Raises StatusError: it does not exist, it
        changed since the client read it, the new state is invalid, or a webhook forbids it.
        """
        kind, cache = request.kind, self._cache(request)
        review = self._review(request, UPDATE)
        while True:
            current = record = self._current(request)
            if kind.converts_when_read and self._conversions is not None:
                [body] = await self._conversions.read(kind, [record.body])
                record = record.with_body(body)
            size = len(request.body) + len(record.body)
            stored, new = await self._compute(
                request.user, size, _apply_change, request, record, make
            )
            if review is not None:
                new = await self._compute(
                    request.user, size, self._prepare_change, request, record, stored, new
                )
                new = conversion.from_stored(kind, await review.mutate(stored, new) or new)
            new = await self._compute(
                request.user, size, self._complete, request, record, stored, new, owner_tracked
            )
            restrict_node_write(request, stored, new)
            self._check_rules(request, stored, new)
            if review is None and not is_long(size) and kind.conversion_webhook is None:
                converted = new
                break
            if review is not None:
                prepare.check_size(request, new, may_have_grown=True)
                await review.validate(stored, new)
            converted = await self._to_stored(kind, new)
            if cache.latest(request.key) is current:
                if not request.subresource and kind.plural != CRD_PLURAL:
                    self._admission.admit_update(kind, stored, new)
                break
        if prepare.is_unchanged(stored, new):
            return await self._return_unchanged(request, current)
        if prepare.is_deleting(new) and prepare.can_be_removed(new):
            return await self._commit(request, converted, removed=True)
        charges = self._admit_quota(request, stored, new)
        return await self._commit(request, converted, charges=charges)

    async def _to_stored(self, kind: ServedKind, obj: Json) -> Json:
        return obj if self._conversions is None else await self._conversions.to_stored(kind, obj)

    def _prepare_change(
        self, request: ApiRequest, record: ObjectRevision, stored: Json, new: Json
    ) -> Json:
        kind = request.kind
        new = self._restrict(request, record, stored, copy_json(new))
        with prepare.report_type_errors(kind, new):
            prepare.apply_defaults(kind, new)
        return new

    def _complete(
        self,
        request: ApiRequest,
        record: ObjectRevision,
        stored: Json,
        new: Json,
        owner_tracked: bool,
    ) -> Json:
        kind = request.kind
        new = self._restrict(request, record, stored, new)
        with prepare.report_type_errors(kind, new):
            prepare.apply_defaults(kind, new)
            if not owner_tracked:
                prepare.track_managed_fields(request, stored, new, utc_now())
            if not request.subresource:
                self._admission.admit_update(kind, stored, new)
        prepare.increment_generation(kind, stored, new)
        prepare.validate_change(request, stored, new)
        large = len(record.body) + len(request.body) > prepare.SIZE_CHECK_FROM_BYTES
        prepare.check_size(request, new, may_have_grown=large and request.verb == "patch")
        return new

    def _restrict(
        self, request: ApiRequest, record: ObjectRevision, stored: Json, new: Json
    ) -> Json:
        """Return the desired state in stored form, without changes that are not permitted."""
        meta = prepare.check_identity(request, new)
        self._check_base(request, record, stored, meta)
        prepare.prune_unknown_fields(request, new)
        new = conversion.to_stored(request.kind, new)
        prepare.preserve_system_metadata(stored, new)
        restrict = RESTRICTIONS.get(request.subresource)
        if restrict is not None:
            restrict(request.kind, stored, new)
        restrict_signing_request(request, stored, new)
        return new

    async def delete(self, request: ApiRequest, deletion: DeletionRequest) -> WriteResult:
        """Remove an object, or set its deletion timestamp. Raises StatusError: it does not exist, a
        precondition fails, or its deletion is forbidden.
        """
        kind, cache = request.kind, self._cache(request)
        options = deletion.to_delete_options()
        review = self._review(request, DELETE, options=options, dry_run=deletion.dry_run)
        while True:
            record = self._current(request)
            size = len(record.body)
            self._admission.admit_deletion(kind, request.name)
            before = await self._compute(request.user, size, read_json, record.body)
            # A deletion changes fields of the metadata and the phase of a namespace.
            obj = before | {"metadata": dict(before["metadata"])}
            if "status" in before:
                obj["status"] = dict(before["status"])
            check_preconditions(request, obj, deletion.uid, deletion.revision)
            restrict_node_write(request, before, None)
            removed = apply_deletion(kind, obj, deletion, utc_now())
            if not removed and prepare.is_unchanged(before, obj):
                return await self._return_unchanged(request, record)
            if review is None and not is_long(size):
                break
            if review is not None:
                await review.mutate(before, None)
                await review.validate(before, None)
            if cache.latest(request.key) is record:
                break
        return await self._commit(request, obj, removed=removed, dry_run=deletion.dry_run)

    def review(self, request: ApiRequest, operation: str) -> WebhookReview | None:
        """Return the review of a subresource's own object, such as a Scale."""
        if self._webhooks is None:
            return None
        return self._webhooks.review(request, operation, own_kind=True)

    def _review(
        self,
        request: ApiRequest,
        operation: str,
        *,
        options: Json | None = None,
        dry_run: bool = False,
    ) -> WebhookReview | None:
        # The body of other subresources is another kind: they call ``review`` themselves.
        if self._webhooks is None or request.subresource not in REVIEWED_SUBRESOURCES:
            return None
        return self._webhooks.review(request, operation, options=options, dry_run=dry_run)

    def _current(self, request: ApiRequest) -> ObjectRevision:
        record = self._cache(request).latest(request.key)
        if record is None:
            raise not_found(request.kind.plural, request.kind.group, request.name)
        return record

    def _check_rules(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Apply the rules. Not in a thread: they read the store."""
        for rule in self._rules:
            rule.check(request, old, new)

    def _admit_quota(self, request: ApiRequest, old: Json | None, new: Json) -> list[QuotaCharge]:
        if self._quotas is None or request.subresource:
            return []
        return self._quotas.admit(request.kind, request.namespace, old, new)

    def _check_namespace(self, request: ApiRequest) -> None:
        if request.kind.namespaced:
            self._admission.check_namespace(request.kind, request.name, request.namespace or "")

    def _check_base(
        self, request: ApiRequest, record: ObjectRevision, stored: Json, meta: Json
    ) -> None:
        kind = request.kind
        uid = meta.get("uid")
        # For a patch it is an error of the validation.
        if uid and uid != stored["metadata"]["uid"] and request.verb == "update":
            check_preconditions(request, stored, uid, "")
        revision = meta.get("resourceVersion")
        if revision and revision != str(record.rv):
            raise conflict(kind.plural, kind.group, request.name, MODIFIED_MESSAGE)
        if not revision and (kind.custom or kind.conditional_updates):
            prepare.reject_unconditional(request)

    async def _commit(
        self,
        request: ApiRequest,
        obj: Json,
        *,
        created: bool = False,
        removed: bool = False,
        dry_run: bool = False,
        charges: Iterable[QuotaCharge] = (),
    ) -> WriteResult:
        if dry_run or request.dry_run:
            return WriteResult(encode_json(obj), created, removed)
        for charge in charges:
            charged = charge.record
            self._store.stage(
                self._store.cache(QUOTAS), charged.key, charge.obj, (charged.labels, charged.fields)
            )
        cache, index = self._cache(request), index_object(request.kind, obj)
        # A disconnect cancels the handler, but a staged write is committed regardless.
        staged = self._store.stage(cache, request.key, obj, index, removed=removed)
        record = await asyncio.shield(staged)
        return WriteResult(record.body, created, removed)

    def _cache(self, request: ApiRequest) -> WatchCache:
        return self._store.cache(request.kind.storage_name)

    async def _return_unchanged(self, request: ApiRequest, record: ObjectRevision) -> WriteResult:
        waited = self._store.pending_write(self._cache(request), request.key)
        if waited is not None:
            await asyncio.shield(waited)
        return WriteResult(record.body)


def _apply_change(
    request: ApiRequest, record: ObjectRevision, change: ChangeFunction
) -> tuple[Json, Json]:
    """Return the stored object, and the one that a change makes of it."""
    stored: Json = read_json(record.body)
    new = change(conversion.from_stored(request.kind, stored))
    if request.verb == "patch":
        prepare.check_patched(request, new, len(record.body))
    return stored, new


def check_preconditions(request: ApiRequest, obj: Json, uid: str, revision: str) -> None:
    """Refuse a write with preconditions for another object, or for another state of this one.
    Raises StatusError: 409.
    """
    meta, kind = obj["metadata"], request.kind
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise conflict(kind.plural, kind.group, request.name, why)
    if revision and revision != meta["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {revision}, "
            f"ResourceVersion in object meta: {meta['resourceVersion']}"
        )
        raise conflict(kind.plural, kind.group, request.name, why)


def index_object(kind: ServedKind, obj: Json) -> tuple[dict[str, str], dict[str, str]]:
    labels: Any = obj["metadata"].get("labels")
    # Records are numerous and long-lived: those without labels or fields share one dict.
    return labels or EMPTY_INDEX, kind.selectable_fields(obj) if kind.selectable else EMPTY_INDEX
