"""Matching of admission webhooks: rules, namespace selectors and object selectors.

Rules depend only on kind, operation and subresource, so their result is cached until a
configuration or a kind changes. Selectors depend on labels, which an earlier webhook may have
changed, so they are evaluated just before each call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gangline.api.cluster.admission import (
    GROUP,
    MutatingWebhook,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ValidatingWebhookConfiguration,
    Webhook,
)
from gangline.api.meta.selectors import NOTHING, Selector, SelectorError, selector_from_object
from gangline.local.apiserver.core.registry import Json, ServedKind

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
CONFIGURATION_TYPES = {
    MUTATING: MutatingWebhookConfiguration,
    VALIDATING: ValidatingWebhookConfiguration,
}
EXEMPT_RESOURCES = (
    MUTATING,
    VALIDATING,
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
"""Resources of the same group that no webhook sees: a webhook could forbid its own removal."""
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledWebhook:
    """A webhook with compiled selectors."""

    spec: Webhook
    namespaces: Selector
    objects: Selector

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def mutating(self) -> bool:
        """True if it may change objects."""
        return isinstance(self.spec, MutatingWebhook)

    @property
    def is_reinvoked(self) -> bool:
        """True if it is called again after later webhooks changed the object."""
        spec = self.spec
        return isinstance(spec, MutatingWebhook) and spec.reinvocation_policy == "IfNeeded"


class MatchedWebhook(NamedTuple):
    """A webhook whose rules match a write, and the version in which it receives the object."""

    hook: CompiledWebhook
    kind: ServedKind


class WriteAttributes(NamedTuple):
    """The attributes of a write that rules match."""

    operation: str
    kind: ServedKind
    subresource: str


def compile_webhooks(plural: str, body: bytes) -> list[CompiledWebhook]:
    """Return the webhooks of a stored configuration in order.

    Raises:
        msgspec.ValidationError: the configuration is invalid; validation prevents storing one.
    """
    # Not strict: schemas accept ``10.0`` as an integer, as JSON does.
    found = msgspec.json.decode(body, type=CONFIGURATION_TYPES[plural], strict=False)
    return [
        CompiledWebhook(
            webhook,
            _selector(webhook, "namespace_selector"),
            _selector(webhook, "object_selector"),
        )
        for webhook in found.webhooks
    ]


def _selector(webhook: Webhook, name: str) -> Selector:
    try:
        return selector_from_object(getattr(webhook, name))
    except SelectorError:
        return NOTHING


def match_webhooks(
    hooks: Iterable[CompiledWebhook], subject: WriteAttributes, forms: Sequence[ServedKind]
) -> list[MatchedWebhook]:
    """Return the webhooks whose rules match. ``forms``: the kind of the write, then its other
    versions.
    """
    if subject.kind.group == GROUP and subject.kind.plural in EXEMPT_RESOURCES:
        return []
    found = (_match_webhook(hook, subject, forms) for hook in hooks)
    return [each for each in found if each is not None]


def _match_webhook(
    hook: CompiledWebhook, subject: WriteAttributes, forms: Sequence[ServedKind]
) -> MatchedWebhook | None:
    exact = hook.spec.match_policy == "Exact"
    for form in forms[:1] if exact else forms:
        if any(rule_matches(rule, subject, form) for rule in hook.spec.rules):
            return MatchedWebhook(hook, form)
    return None


def rule_matches(rule: RuleWithOperations, subject: WriteAttributes, form: ServedKind) -> bool:
    """Return True if a rule matches a write in one version of its kind."""
    return (
        _contains(rule.operations, subject.operation)
        and _contains(rule.api_groups, form.group)
        and _contains(rule.api_versions, form.version)
        and any(
            _resource_matches(text, form.plural, subject.subresource) for text in rule.resources
        )
        and _in_scope(rule.scope, form)
    )


def _contains(listed: Sequence[str], value: str) -> bool:
    return "*" in listed or value in listed


def _resource_matches(text: str, plural: str, subresource: str) -> bool:
    resource, _, part = text.partition("/")
    return resource in ("*", plural) and part in ("*", subresource)


def _in_scope(scope: str, kind: ServedKind) -> bool:
    return scope in ("", "*") or (scope == "Namespaced") == kind.namespaced


def object_selector_matches(hook: CompiledWebhook, old: Json | None, new: Json | None) -> bool:
    """Return True if the object selector matches the state before or after the write."""
    if not hook.objects.requirements:
        return not hook.objects.matches_nothing
    states = (state for state in (new, old) if state is not None)
    return any(hook.objects.matches(object_labels(state)) for state in states)


def object_labels(obj: Json) -> Labels:
    """Return the labels of an object; empty unless they are a map of strings."""
    meta = obj.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(value, str)}
