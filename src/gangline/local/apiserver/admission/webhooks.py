"""Admission webhooks: which are called for a write, in which order, and with what result.

``WebhookAdmission`` keeps the configured webhooks consistent with the store. For a write that no
webhook matches it returns no ``WebhookReview``, at the cost of one dictionary lookup. A review
calls mutating webhooks in turn and validating ones concurrently. A writer locks nothing during
these calls; afterwards it checks that the state on which it is based is still current.

Objects are passed in their stored form. Each webhook gets the version that its rule names.
"""

import asyncio
import logging
from functools import partial
from typing import NamedTuple, cast

import msgspec

from gangline.api.cluster.admission import GROUP, AdmissionResponse
from gangline.local.apiserver.admission.policies import (
    BINDINGS,
    POLICIES,
    MatchedPolicy,
    PolicyBinding,
    check_policy,
    load_policies,
    match_policies,
    names_match,
)
from gangline.local.apiserver.admission.webhook_call import (
    CONFIGURATION_TYPES,
    MUTATING,
    VALIDATING,
    CompiledWebhook,
    MatchedWebhook,
    ReviewInput,
    WebhookClient,
    WebhookError,
    WriteAttributes,
    admission_request,
    compile_webhooks,
    decode_response,
    denial_error,
    encode_review,
    is_namespace,
    match_webhooks,
    object_labels,
    object_selector_matches,
    patch_operations,
    request_namespace,
    request_options,
)
from gangline.local.apiserver.core import conversion, prepare
from gangline.local.apiserver.core.errors import forbidden, internal, not_found, timed_out
from gangline.local.apiserver.core.registry import SUBRESOURCES, Json, Registry, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.patches import PatchError, json_equal, json_patch
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent, ObjectRevision

log = logging.getLogger(__name__)

CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"
TOTAL_TIMEOUT_S = 34.0
"""Total time limit in seconds for all webhooks of one write, as in Kubernetes."""
DEADLINE_MESSAGE = "request did not complete within requested timeout - context deadline exceeded"


class AdmissionMatch(NamedTuple):
    """What reviews a write."""

    mutating: list[MatchedWebhook]
    validating: list[MatchedWebhook]
    policies: list[MatchedPolicy]


class WebhookAdmission:
    """The configured webhooks."""

    def __init__(self, store: ObjectStore, registry: Registry, link: WebhookClient) -> None:
        self.store = store
        self.registry = registry
        self.link = link
        self._policies: list[PolicyBinding] | None = None
        """None: they have changed."""
        self._configured: dict[str, dict[str, list[CompiledWebhook]]] = {
            name: {} for name in CONFIGURATION_TYPES
        }
        self._matched: dict[tuple[str, ...], AdmissionMatch] = {}
        self._generation = -1
        self._has_webhooks = False

    def load(self) -> None:
        """Load the stored configurations and follow their changes."""
        for plural in CONFIGURATION_TYPES:
            cache = self.store.cache(f"{plural}.{GROUP}")
            for record in cache.records.values():
                self._configured[plural][record.key] = _compile_or_skip(plural, record)
            self.store.add_listener(f"{plural}.{GROUP}", partial(self._on_change, plural))
        for plural in (POLICIES, BINDINGS):
            self.store.add_listener(f"{plural}.{GROUP}", self._on_policy_change)
        self._has_webhooks = any(self._configured.values())

    def _on_policy_change(self, event: CacheEvent) -> None:
        self._policies = None
        self._matched.clear()

    def _on_change(self, plural: str, event: CacheEvent) -> None:
        configured, record = self._configured[plural], event.record
        if event.type == DELETED:
            configured.pop(record.key, None)
        else:
            configured[record.key] = _compile_or_skip(plural, record)
        self._has_webhooks = any(self._configured.values())
        self._matched.clear()

    def review(
        self,
        request: ApiRequest,
        operation: str,
        *,
        options: Json | None = None,
        dry_run: bool = False,
        own_kind: bool = False,
    ) -> "WebhookReview | None":
        """Return the review of a write, or None if no webhook matches it.

        Args:
            request: the request.
            operation: CREATE, UPDATE, DELETE or CONNECT.
            options: operation options that are not in the query.
            dry_run: True if nothing is stored although the query does not request a dry run.
            own_kind: True if the object is the subresource's own, such as a Scale.
        """
        if self._policies is None:
            self._policies = load_policies(self.store)
        if not self._has_webhooks and not self._policies:
            return None
        matched = self._match(WriteAttributes(operation, request.kind, request.subresource))
        if not any(matched):
            return None
        dry = dry_run or request.dry_run
        shown = _kind_of_subresource(request) if own_kind and request.subresource else None
        review_input = ReviewInput(
            request, operation, request_options(request, operation, options), shown, dry
        )
        return WebhookReview(self, review_input, matched)

    async def review_connection(self, request: ApiRequest) -> None:
        """Let webhooks and policies decide about a stream into a pod. Raises StatusError: one of
        them denies it, or fails.
        """
        if not request.subresource or not (kind := _kind_of_subresource(request)[2]):
            return
        if (review := self.review(request, CONNECT, own_kind=True)) is not None:
            await review.admit(None, _connection_options(request, kind))

    def _match(self, subject: WriteAttributes) -> AdmissionMatch:
        if self._generation != self.registry.generation:
            self._matched.clear()
            self._generation = self.registry.generation
        kind = subject.kind
        key = (subject.operation, kind.group, kind.version, kind.plural, subject.subresource)
        matches = self._matched.get(key)
        if matches is None:
            others = (k for k in self.registry if k.storage_name == kind.storage_name)
            forms = [kind, *(k for k in others if k is not kind)]
            matches = AdmissionMatch(
                match_webhooks(self._hooks(MUTATING), subject, forms),
                match_webhooks(self._hooks(VALIDATING), subject, forms),
                match_policies(self._policies or (), subject, forms),
            )
            self._matched[key] = matches
        return matches

    def _hooks(self, plural: str) -> list[CompiledWebhook]:
        configured = self._configured[plural]
        return [hook for name in sorted(configured) for hook in configured[name]]


def _kind_of_subresource(request: ApiRequest) -> tuple[str, str, str]:
    group, version, kind, _ = SUBRESOURCES[request.subresource]
    return group, version or "v1", kind.format(request.kind.kind)


def _connection_options(request: ApiRequest, kind: str) -> Json:
    """Return the query of a connection as the object that Kubernetes shows."""
    lists = {"command": request.all_params.get("command"), "ports": request.all_params.get("ports")}
    texts = {"container": request.params.get("container")}
    flags = {name: request.bool_param(name) for name in ("stdin", "stdout", "stderr", "tty")}
    given = {name: value for name, value in (lists | texts | flags).items() if value}
    return {"kind": kind, "apiVersion": "v1", **given}


def _compile_or_skip(plural: str, record: ObjectRevision) -> list[CompiledWebhook]:
    try:
        return compile_webhooks(plural, record.body)
    except msgspec.ValidationError as error:
        # Refusing every write, or the start, would also prevent the repair.
        log.error(
            "invalid webhook configuration ignored",
            extra={"configuration": record.key, "why": str(error)},
        )
        return []


class WebhookReview:
    """The webhook calls for one write."""

    def __init__(
        self, admission: WebhookAdmission, review_input: ReviewInput, matched: AdmissionMatch
    ) -> None:
        self._store, self._registry = admission.store, admission.registry
        self._link = admission.link
        self._input = review_input
        self._mutating, self._validating, self._policies = matched
        self._deadline = asyncio.get_running_loop().time() + TOTAL_TIMEOUT_S

    async def admit(self, old: Json | None, new: Json) -> Json:
        """Call all webhooks without a step between; return ``new`` as they changed it. Raises
        StatusError: as ``mutate`` and ``validate``.
        """
        changed = await self.mutate(old, new) or new
        await self.validate(old, changed)
        return changed

    async def mutate(self, old: Json | None, new: Json | None) -> Json | None:
        """Call the mutating webhooks in turn; return ``new`` as they changed it.

        Webhooks with ``reinvocationPolicy: IfNeeded`` are called again, once, after later changes.
        Raises StatusError: a webhook denies the write, fails, or returns an invalid response.
        """
        asked: set[CompiledWebhook] = set()
        due: set[CompiledWebhook] = set()
        for is_second in (False, True):
            for matched in self._mutating:
                hook = matched.hook
                if (is_second and hook not in due) or not self._selectors_match(hook, old, new):
                    continue
                changed = await self._call_mutating(matched, old, new)
                if changed is not None:
                    new = changed
                    due |= asked
                    asked.clear()
                if hook.is_reinvoked:
                    asked.add(hook)
            if not due:
                break
        return new

    async def validate(self, old: Json | None, new: Json | None) -> None:
        """Evaluate the policies, then call the validating webhooks concurrently. Raises
        StatusError: a policy or a webhook denies the write, or fails.
        """
        for matched in self._policies:
            if all(self._selectors_match(hook, old, new) for hook in matched.bound.matches):
                self._check_policy(matched, old, new)
        matching = [
            webhook for webhook in self._validating if self._selectors_match(webhook.hook, old, new)
        ]
        answers = [self._call_webhook(webhook, old, new) for webhook in matching]
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _check_policy(self, matched: MatchedPolicy, old: Json | None, new: Json | None) -> None:
        shown = self._input
        request, form = shown.request, matched.kind
        subject = WriteAttributes(shown.operation, request.kind, request.subresource)
        if not names_match(matched, subject, request.name):
            return
        before, after = (
            None if state is None else self._in_version(form, state) for state in (old, new)
        )
        data = {
            "object": after,
            "oldObject": before,
            "request": self._shown_request(form),
            "namespaceObject": self._store.latest("namespaces.", request_namespace(request, new)),
        }
        check_policy(self._store, self._registry, request, matched.bound, data)

    def _shown_request(self, form: ServedKind) -> Json:
        """Return the request as expressions see it."""
        request = admission_request(self._input, form, "", (None, None))
        return cast(Json, msgspec.to_builtins(request))

    def _selectors_match(self, hook: CompiledWebhook, old: Json | None, new: Json | None) -> bool:
        return (
            self._namespace_selector_matches(hook, new)
            and object_selector_matches(hook, old, new)
            and (not hook.spec.match_conditions or self._conditions_match(hook, old, new))
        )

    def _conditions_match(self, hook: CompiledWebhook, old: Json | None, new: Json | None) -> bool:
        """Evaluate the match conditions, all of which must be true. Raises StatusError: one cannot
        be evaluated, and the webhook's failure policy is not Ignore.
        """
        # Most clusters have no conditions: the library takes 50 ms to load.
        from gangline.local.apiserver.machinery.cel.rules import evaluate

        request = self._input.request
        data = {"object": new, "oldObject": old, "request": self._shown_request(request.kind)}
        failed = ""
        for condition in hook.spec.match_conditions:
            outcome = evaluate(condition.expression, data)
            if outcome is False:
                return False
            if outcome is not True:
                failed = f'match condition "{condition.name}" of webhook "{hook.name}": {outcome}'
        if failed and hook.spec.failure_policy != "Ignore":
            raise forbidden(failed, request.kind.plural, request.kind.group, request.name)
        return not failed

    def _namespace_selector_matches(self, hook: CompiledWebhook, new: Json | None) -> bool:
        if not hook.namespaces.requirements:
            return not hook.namespaces.matches_nothing
        request = self._input.request
        if is_namespace(request.kind) and not request.subresource and new is not None:
            return hook.namespaces.matches(object_labels(new))
        name = request_namespace(request, new)
        if not name:
            return True
        record = self._store.cache("namespaces.").latest(name)
        if record is None:
            raise not_found("namespaces", "", name)
        return hook.namespaces.matches(record.labels)

    async def _call_mutating(
        self, matched: MatchedWebhook, old: Json | None, new: Json | None
    ) -> Json | None:
        """Return the object as a webhook changed it, or None if it did not."""
        response = await self._call_webhook(matched, old, new)
        hook = matched.hook
        if response is None:
            return None
        try:
            operations = patch_operations(response)
            if not operations:
                return None
            if new is None:
                raise internal(
                    f'admission webhook "{hook.name}" attempted to modify the object, which is '
                    "not supported for this operation"
                )
            before = self._in_version(matched.kind, new)
            after = json_patch(before, operations)
        except (WebhookError, PatchError) as error:
            raise internal(f'admission webhook "{hook.name}": {error}') from None
        if json_equal(before, after):
            return None
        return self._normalize_patched(matched.kind, after)

    def _normalize_patched(self, form: ServedKind, obj: Json) -> Json:
        """Normalize a patched object: stored form, no unknown fields, all defaults."""
        if self._input.reviewed_kind is not None:
            return obj
        form.schema.prune(obj)
        obj = conversion.to_stored(form, obj)
        with prepare.report_type_errors(form, obj):
            prepare.apply_defaults(form, obj)
        return obj

    def _in_version(self, form: ServedKind, obj: Json) -> Json:
        return obj if self._input.reviewed_kind is not None else conversion.from_stored(form, obj)

    async def _call_webhook(
        self, matched: MatchedWebhook, old: Json | None, new: Json | None
    ) -> AdmissionResponse | None:
        """Return a webhook's response, or None if it failed and its failure policy is Ignore."""
        hook, form = matched
        loop, request = asyncio.get_running_loop(), self._input.request
        left = self._deadline - loop.time()
        if left <= 0:
            raise timed_out(f"Timeout: {DEADLINE_MESSAGE}")
        before = None if old is None else self._in_version(form, old)
        after = None if new is None else self._in_version(form, new)
        uid, body = encode_review(hook, self._input, form, before, after)
        try:
            answer = await self._link.call(hook, body, min(hook.spec.timeout_seconds, left))
            response = decode_response(hook, uid, answer)
        except WebhookError as error:
            if loop.time() >= self._deadline:
                raise timed_out(f"Timeout: {DEADLINE_MESSAGE}") from None
            failed = f'failed calling webhook "{hook.name}": {error}'
            if hook.spec.failure_policy != "Ignore":
                raise internal(failed) from None
            log.warning("webhook ignored", extra={"webhook": hook.name, "why": failed})
            return None
        request.warnings += response.warnings or []
        if not response.allowed:
            raise denial_error(hook, response.status)
        return response
