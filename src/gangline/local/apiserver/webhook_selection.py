"""Which webhooks are asked about a write: rules, and selectors of namespaces and objects. Pure.

Rules depend on kind, operation and subresource alone, so their outcome is worked out once for each
and kept until a configuration or a kind changes. Selectors look at labels, which an earlier
webhook may have changed: they are asked just before each call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gangline.api.admission import (
    GROUP,
    MutatingWebhook,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ValidatingWebhookConfiguration,
    Webhook,
)
from gangline.api.selectors import NOTHING, Selector, SelectorError, from_object
from gangline.local.apiserver.registry import Json, Kind

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
TYPES = {MUTATING: MutatingWebhookConfiguration, VALIDATING: ValidatingWebhookConfiguration}
EXEMPT = (MUTATING, VALIDATING, "validatingadmissionpolicies", "validatingadmissionpolicybindings")
"""Resources of the same group that no webhook may see: one could forbid its own removal."""
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A webhook, ready to be asked."""

    spec: Webhook
    namespaces: Selector
    objects: Selector

    @property
    def name(self) -> str:
        """Its full name, which messages show."""
        return self.spec.name

    @property
    def mutating(self) -> bool:
        """Whether it may change objects."""
        return isinstance(self.spec, MutatingWebhook)

    @property
    def asked_again(self) -> bool:
        """Whether it wants to see what later webhooks change."""
        spec = self.spec
        return isinstance(spec, MutatingWebhook) and spec.reinvocation_policy == "IfNeeded"


class Matched(NamedTuple):
    """A webhook whose rules mean a write, and the version of the kind in which it wants to see."""

    hook: Hook
    kind: Kind


class Subject(NamedTuple):
    """What a write is about, as rules see it."""

    operation: str
    kind: Kind
    subresource: str


def hooks_of(plural: str, body: bytes) -> list[Hook]:
    """The webhooks of a stored configuration, in its order.

    Raises:
        msgspec.ValidationError: it is not of its kind, which validation keeps from being stored.
    """
    # Schemas let ``10.0`` pass for a whole number, as JSON does.
    found = msgspec.json.decode(body, type=TYPES[plural], strict=False)
    return [
        Hook(
            webhook,
            _selector(webhook, "namespace_selector"),
            _selector(webhook, "object_selector"),
        )
        for webhook in found.webhooks
    ]


def _selector(webhook: Webhook, name: str) -> Selector:
    try:
        return from_object(getattr(webhook, name))
    except SelectorError:
        return NOTHING


def matching(hooks: Iterable[Hook], subject: Subject, forms: Sequence[Kind]) -> list[Matched]:
    """The webhooks whose rules mean a write; ``forms``: its kind, then other versions of it."""
    if subject.kind.group == GROUP and subject.kind.plural in EXEMPT:
        return []
    found = (_matched(hook, subject, forms) for hook in hooks)
    return [each for each in found if each is not None]


def _matched(hook: Hook, subject: Subject, forms: Sequence[Kind]) -> Matched | None:
    exact = hook.spec.match_policy == "Exact"
    for form in forms[:1] if exact else forms:
        if any(rule_matches(rule, subject, form) for rule in hook.spec.rules):
            return Matched(hook, form)
    return None


def rule_matches(rule: RuleWithOperations, subject: Subject, form: Kind) -> bool:
    """Whether a rule means a write of ``subject``, seen in one version of its kind."""
    return (
        _has(rule.operations, subject.operation)
        and _has(rule.api_groups, form.group)
        and _has(rule.api_versions, form.version)
        and any(_names(text, form.plural, subject.subresource) for text in rule.resources)
        and _in_scope(rule.scope, form)
    )


def _has(listed: Sequence[str], wanted: str) -> bool:
    return "*" in listed or wanted in listed


def _names(text: str, plural: str, subresource: str) -> bool:
    resource, _, part = text.partition("/")
    return resource in ("*", plural) and part in ("*", subresource)


def _in_scope(scope: str, kind: Kind) -> bool:
    return scope in ("", "*") or (scope == "Namespaced") == kind.namespaced


def objects_meant(hook: Hook, old: Json | None, new: Json | None) -> bool:
    """Whether a webhook's object selector means the state before or the state after."""
    if not hook.objects.requirements:
        return not hook.objects.nothing
    states = (state for state in (new, old) if state is not None)
    return any(hook.objects.matches(labels_of(state)) for state in states)


def labels_of(obj: Json) -> Labels:
    """The labels of an object; none where they are not a map of texts."""
    meta = obj.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(value, str)}
