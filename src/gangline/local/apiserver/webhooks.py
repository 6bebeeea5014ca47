"""Admission webhooks: which are called for a write, in which order, and with what result.

``Webhooks`` keeps the configured webhooks consistent with the store. For a write that no webhook
matches it returns no ``Review``, at the cost of one dictionary lookup. A review calls mutating
webhooks in turn and validating ones concurrently. A writer locks nothing during these calls;
afterwards it checks that the state on which it is based is still current.

Objects are passed in their stored form. Each webhook gets the version that its rule names.
"""

import asyncio
import logging

import msgspec

from gangline.api.admission import GROUP, AdmissionResponse
from gangline.local.apiserver import conversion, objects
from gangline.local.apiserver.errors import internal, not_found, timed_out
from gangline.local.apiserver.history import DELETED, Event, Record
from gangline.local.apiserver.machinery.patches import PatchError, json_patch, same_json
from gangline.local.apiserver.registry import Json, Kind, Registry
from gangline.local.apiserver.request import Call
from gangline.local.apiserver.store import Store
from gangline.local.apiserver.webhook_call import CallFailed, WebhookLink
from gangline.local.apiserver.webhook_review import (
    BadAnswer,
    Question,
    ask,
    denial,
    is_namespace,
    namespace_of,
    operations_of,
    options_of,
    read_answer,
)
from gangline.local.apiserver.webhook_selection import (
    MUTATING,
    TYPES,
    VALIDATING,
    Hook,
    Matched,
    Subject,
    hooks_of,
    labels_of,
    matching,
    objects_meant,
)

log = logging.getLogger(__name__)

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
LONGEST_S = 34.0
"""Total time limit in seconds for all webhooks of one write, as in Kubernetes."""
TOO_LATE = "request did not complete within requested timeout - context deadline exceeded"

Shown = tuple[str, str, str]


class Webhooks:
    """The configured webhooks."""

    def __init__(self, store: Store, registry: Registry, link: WebhookLink) -> None:
        self._store = store
        self._registry = registry
        self._link = link
        self._configured: dict[str, dict[str, list[Hook]]] = {name: {} for name in TYPES}
        self._matched: dict[tuple[str, ...], tuple[list[Matched], list[Matched]]] = {}
        self._generation = -1
        self._any = False

    def load(self) -> None:
        """Load the stored configurations and follow their changes."""
        for plural in TYPES:
            cache = self._store.topic(f"{plural}.{GROUP}")
            for record in cache.records.values():
                self._configured[plural][record.key] = _readable(plural, record)
        self._any = any(self._configured.values())
        self._store.on_change(f"{MUTATING}.{GROUP}", lambda event: self._changed(MUTATING, event))
        self._store.on_change(
            f"{VALIDATING}.{GROUP}", lambda event: self._changed(VALIDATING, event)
        )

    def _changed(self, plural: str, event: Event) -> None:
        configured, record = self._configured[plural], event.record
        if event.type == DELETED:
            configured.pop(record.key, None)
        else:
            configured[record.key] = _readable(plural, record)
        self._any = any(self._configured.values())
        self._matched.clear()

    def review(
        self,
        request: Call,
        operation: str,
        *,
        options: Json | None = None,
        dry_run: bool = False,
        shown: Shown | None = None,
    ) -> "Review | None":
        """Return the review of a write, or None if no webhook matches it.

        Args:
            request: the request.
            operation: CREATE, UPDATE or DELETE.
            options: operation options that are not in the query.
            dry_run: True if nothing is stored although the query does not request a dry run.
            shown: group, version and kind of the reviewed object if not of the request's kind.
        """
        if not self._any:
            return None
        mutating, validating = self._meaning(Subject(operation, request.kind, request.subresource))
        if not mutating and not validating:
            return None
        dry = dry_run or request.dry_run
        question = Question(request, operation, options_of(request, operation, options), shown, dry)
        return Review(self._store, self._link, question, mutating, validating)

    def _meaning(self, subject: Subject) -> tuple[list[Matched], list[Matched]]:
        if self._generation != self._registry.generation:
            self._matched.clear()
            self._generation = self._registry.generation
        kind = subject.kind
        key = (subject.operation, kind.group, kind.version, kind.plural, subject.subresource)
        found = self._matched.get(key)
        if found is None:
            others = (k for k in self._registry if k.topic == kind.topic)
            forms = [kind, *(k for k in others if k is not kind)]
            found = (
                matching(self._hooks(MUTATING), subject, forms),
                matching(self._hooks(VALIDATING), subject, forms),
            )
            self._matched[key] = found
        return found

    def _hooks(self, plural: str) -> list[Hook]:
        configured = self._configured[plural]
        return [hook for name in sorted(configured) for hook in configured[name]]


def _readable(plural: str, record: Record) -> list[Hook]:
    try:
        return hooks_of(plural, record.body)
    except msgspec.ValidationError as error:
        # Refusing every write, or the start, would also prevent the repair.
        log.error(
            "invalid webhook configuration ignored",
            extra={"configuration": record.key, "why": str(error)},
        )
        return []


class Review:
    """The webhook calls for one write."""

    def __init__(
        self,
        store: Store,
        link: WebhookLink,
        question: Question,
        mutating: list[Matched],
        validating: list[Matched],
    ) -> None:
        self._store = store
        self._link = link
        self._question = question
        self._mutating = mutating
        self._validating = validating
        self._deadline = asyncio.get_running_loop().time() + LONGEST_S

    async def admit(self, old: Json | None, new: Json) -> Json:
        """Call all webhooks without a step between; return ``new`` as they changed it.

        Raises:
            StatusError: as ``mutate`` and ``validate``.
        """
        changed = await self.mutate(old, new) or new
        await self.validate(old, changed)
        return changed

    async def mutate(self, old: Json | None, new: Json | None) -> Json | None:
        """Call the mutating webhooks in turn; return ``new`` as they changed it.

        Webhooks with ``reinvocationPolicy: IfNeeded`` are called again, once, after later changes.

        Raises:
            StatusError: a webhook denies the write, fails, or returns an invalid response.
        """
        asked: set[Hook] = set()
        due: set[Hook] = set()
        for is_second in (False, True):
            for matched in self._mutating:
                hook = matched.hook
                if (is_second and hook not in due) or not self._means(hook, old, new):
                    continue
                changed = await self._mutated(matched, old, new)
                if changed is not None:
                    new = changed
                    due |= asked
                    asked.clear()
                if hook.asked_again:
                    asked.add(hook)
            if not due:
                break
        return new

    async def validate(self, old: Json | None, new: Json | None) -> None:
        """Call the validating webhooks concurrently.

        Raises:
            StatusError: a webhook denies the write, or fails.
        """
        meant = [each for each in self._validating if self._means(each.hook, old, new)]
        answers = [self._ask(each, old, new) for each in meant]
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _means(self, hook: Hook, old: Json | None, new: Json | None) -> bool:
        return self._namespace_meant(hook, new) and objects_meant(hook, old, new)

    def _namespace_meant(self, hook: Hook, new: Json | None) -> bool:
        if not hook.namespaces.requirements:
            return not hook.namespaces.nothing
        request = self._question.request
        if is_namespace(request.kind) and not request.subresource and new is not None:
            return hook.namespaces.matches(labels_of(new))
        name = namespace_of(request, new)
        if not name:
            return True
        record = self._store.topic("namespaces.").latest(name)
        if record is None:
            raise not_found("namespaces", "", name)
        return hook.namespaces.matches(record.labels)

    async def _mutated(self, matched: Matched, old: Json | None, new: Json | None) -> Json | None:
        """Return the object as a webhook changed it, or None if it did not."""
        response = await self._ask(matched, old, new)
        hook = matched.hook
        if response is None:
            return None
        try:
            operations = operations_of(response)
            if not operations:
                return None
            if new is None:
                raise internal(
                    f'admission webhook "{hook.name}" attempted to modify the object, which is '
                    "not supported for this operation"
                )
            before = self._shown(matched.kind, new)
            after = json_patch(before, operations)
        except (BadAnswer, PatchError) as error:
            raise internal(f'admission webhook "{hook.name}": {error}') from None
        if same_json(before, after):
            return None
        return self._settled(matched.kind, after)

    def _settled(self, form: Kind, obj: Json) -> Json:
        """Normalize a patched object: stored form, no unknown fields, all defaults."""
        if self._question.shown is not None:
            return obj
        form.schema.prune(obj)
        obj = conversion.to_stored(form, obj)
        with objects.types_checked(form, obj):
            objects.set_defaults(form, obj)
        return obj

    def _shown(self, form: Kind, obj: Json) -> Json:
        return obj if self._question.shown is not None else conversion.from_stored(form, obj)

    async def _ask(
        self, matched: Matched, old: Json | None, new: Json | None
    ) -> AdmissionResponse | None:
        """Return a webhook's response, or None if it failed and its failure policy is Ignore."""
        hook, form = matched
        loop, request = asyncio.get_running_loop(), self._question.request
        left = self._deadline - loop.time()
        if left <= 0:
            raise timed_out(f"Timeout: {TOO_LATE}")
        before = None if old is None else self._shown(form, old)
        after = None if new is None else self._shown(form, new)
        uid, body = ask(hook, self._question, form, before, after)
        try:
            try:
                answer = await self._link.ask(hook, body, min(hook.spec.timeout_seconds, left))
            except CallFailed as error:
                raise BadAnswer(f"failed to call webhook: {error}") from error
            response = read_answer(hook, uid, answer)
        except BadAnswer as error:
            if loop.time() >= self._deadline:
                raise timed_out(f"Timeout: {TOO_LATE}") from None
            failed = f'failed calling webhook "{hook.name}": {error}'
            if hook.spec.failure_policy != "Ignore":
                raise internal(failed) from None
            log.warning("webhook ignored", extra={"webhook": hook.name, "why": failed})
            return None
        request.warnings += response.warnings or []
        if not response.allowed:
            raise denial(hook, response.status)
        return response
