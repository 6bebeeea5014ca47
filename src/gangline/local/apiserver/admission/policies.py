"""ValidatingAdmissionPolicies: rules in CEL for writes, without a webhook.

A policy acts through its bindings. For each binding that matches a write its validations are
evaluated, once for each parameter object. The actions of the binding decide what a failed
validation does: ``Deny`` refuses the write, ``Warn`` returns a warning, ``Audit`` annotates the
event of the audit log, as do ``auditAnnotations``. Expressions that fail to evaluate count as
failed validations, unless the policy's ``failurePolicy`` is ``Ignore``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gangline.api.cluster.admission import GROUP, RuleWithOperations, ValidatingWebhook
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import StatusCause, StatusDetails
from gangline.local.apiserver.admission.webhook_call import (
    CompiledWebhook,
    WriteAttributes,
    compile_webhook,
    match_webhooks,
    rule_matches,
)
from gangline.local.apiserver.core import conversion
from gangline.local.apiserver.core.errors import StatusError, qualified_resource, status_error
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, Registry, ServedKind, read_selector
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.cel import POLICY_VARIABLES
from gangline.local.apiserver.storage.store import ObjectStore

POLICIES, BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
VALIDATION_FAILURE = "validation.policy.admission.k8s.io/validation_failure"
CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}


@dataclass(frozen=True, slots=True, eq=False)
class PolicyBinding:
    """A policy and one of its bindings, with what they match as webhooks."""

    policy: Json
    binding: Json
    matches: Sequence[CompiledWebhook]
    """All of them must match: the policy, then the binding if it names resources."""

    @property
    def name(self) -> str:
        return str(self.policy["metadata"]["name"])

    @property
    def spec(self) -> Json:
        return subobject(self.policy, "spec")

    @property
    def ignores_errors(self) -> bool:
        return bool(self.spec.get("failurePolicy") == "Ignore")


@dataclass(frozen=True, slots=True, eq=False)
class MatchedPolicy:
    """A binding whose rules match a write, and the version in which it sees the object."""

    bound: PolicyBinding
    kind: ServedKind


def load_policies(store: ObjectStore) -> list[PolicyBinding]:
    """Return all bindings of stored policies."""
    policies = {key: read_json(record.body)
                for key, record in store.cache(f"{POLICIES}.{GROUP}").records.items()}  # fmt: skip
    bound = []
    for record in store.cache(f"{BINDINGS}.{GROUP}").records.values():
        binding: Json = read_json(record.body)
        policy = policies.get(str(subobject(binding, "spec").get("policyName")))
        if policy is None:
            continue
        matches = [_as_webhook(subobject(policy, "spec", "matchConstraints"))]
        if match := subobject(binding, "spec", "matchResources"):
            matches.append(_as_webhook(match))
        bound.append(PolicyBinding(policy, binding, matches))
    return bound


def _as_webhook(match: Json) -> CompiledWebhook:
    """Return a webhook for the same writes: rules and selectors have the same meaning for it."""
    any_write = {name: ["*"] for name in ("operations", "apiGroups", "apiVersions")}
    described: Json = {"rules": [{**any_write, "resources": ["*/*", "*"]}]}
    for name in ("matchPolicy", "namespaceSelector", "objectSelector"):
        if match.get(name):
            described[name] = match[name]
    if match.get("resourceRules"):
        described["rules"] = match["resourceRules"]
    return compile_webhook(msgspec.convert(described, ValidatingWebhook))


def match_policies(
    policies: Sequence[PolicyBinding], subject: WriteAttributes, forms: Sequence[ServedKind]
) -> list[MatchedPolicy]:
    """Return the bindings whose rules match a write."""
    matched = []
    for bound in policies:
        hooks = match_webhooks(bound.matches, subject, forms)
        if len(hooks) == len(bound.matches):
            matched.append(MatchedPolicy(bound, hooks[0].kind))
    return matched


def names_match(matched: MatchedPolicy, subject: WriteAttributes, name: str) -> bool:
    """Return True if no rule excludes a write, and those that name objects name this one."""

    def matches(match: Json, field: str) -> bool:
        return any(
            rule_matches(msgspec.convert(rule, RuleWithOperations), subject, matched.kind)
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in objects_in(match.get(field))
        )

    bound = matched.bound
    return all(
        (not match.get("resourceRules") or matches(match, "resourceRules"))
        and not matches(match, "excludeResourceRules")
        for match in (
            subobject(bound.spec, "matchConstraints"),
            subobject(bound.binding, "spec", "matchResources"),
        )
    )


def check_policy(
    store: ObjectStore,
    registry: Registry,
    request: ApiRequest,
    bound: PolicyBinding,
    data: Mapping[str, Any],
) -> None:
    """Apply one binding to a write. ``data``: the values of the variables that do not depend on
    the policy. Raises StatusError: a validation fails, and the binding denies that.
    """
    spec = subobject(bound.binding, "spec")
    actions = spec.get("validationActions") or []
    params, problem = _find_params(store, registry, bound, request.namespace or "")
    failures: list[tuple[str, str, int]] = []
    if problem and not bound.ignores_errors:
        failures.append((f"failed to configure binding: {problem}", "Invalid", 0))
    notes = request.audit_annotations
    for param in params:
        failures += _failures(bound, {**data, "params": param}, notes)
    binding = str(bound.binding["metadata"]["name"])
    named = f"ValidatingAdmissionPolicy '{bound.name}' with binding '{binding}'"
    if failures and "Audit" in actions:
        former = json.loads(notes.get(VALIDATION_FAILURE, "[]"))
        added = [
            {
                "message": message,
                "policy": bound.name,
                "binding": binding,
                "expressionIndex": index,
                "validationActions": actions,
            }
            for message, _, index in failures
        ]
        notes[VALIDATION_FAILURE] = json.dumps([*former, *added])
    for message, reason, _ in failures:
        if "Warn" in actions:
            request.warnings.append(f"Validation failed for {named}: {message}")
        if "Deny" in actions:
            raise _denial(request, f"{named} denied request: {message}", reason)


def _denial(request: ApiRequest, text: str, reason: str) -> StatusError:
    kind, name = request.kind, request.name
    details = StatusDetails(
        name=name, group=kind.group, kind=kind.plural, causes=[StatusCause("", text)]
    )
    message = f'{qualified_resource(kind.plural, kind.group)} "{name}" is forbidden: {text}'
    return status_error(CODES.get(reason, 422), reason, message, details)


def _failures(
    bound: PolicyBinding, data: Json, notes: dict[str, str]
) -> Iterator[tuple[str, str, int]]:
    """Yield message, reason and index of each failed validation, and add the annotations of the
    policy to ``notes``.
    """
    # Most clusters have no policies: the library takes 50 ms to load.
    from gangline.local.apiserver.machinery.cel.rules import RuleError, evaluate

    shown, variables = dict.fromkeys(POLICY_VARIABLES) | data, dict[str, Any]()
    shown["variables"] = variables
    for condition in objects_in(bound.spec.get("matchConditions")):
        outcome = evaluate(str(condition.get("expression")), shown)
        if outcome is False:
            return
        if outcome is not True and not bound.ignores_errors:
            yield f"match condition '{condition.get('name')}': {outcome}", "Invalid", 0
            return
    for variable in objects_in(bound.spec.get("variables")):
        value = evaluate(str(variable.get("expression")), shown)
        # The error of one that no validation uses does not count.
        if not isinstance(value, RuleError):
            variables[str(variable.get("name"))] = value
    for note in objects_in(bound.spec.get("auditAnnotations")):
        value = evaluate(str(note.get("valueExpression")), shown)
        if isinstance(value, str) and value.strip():
            notes[f"{bound.name}/{note.get('key')}"] = value.strip()
    for index, rule in enumerate(objects_in(bound.spec.get("validations"))):
        expression = str(rule.get("expression")).strip()
        outcome = evaluate(expression, shown)
        if outcome is False:
            message = str(rule.get("message") or f"failed expression: {expression}")
            if rule.get("messageExpression"):
                text = evaluate(str(rule["messageExpression"]), shown)
                message = text if isinstance(text, str) and text.strip() else message
            yield message.strip(), str(rule.get("reason") or "Invalid"), index
        elif outcome is not True and not bound.ignores_errors:
            yield f"expression '{expression}' resulted in error: {outcome}", "Invalid", index


def _find_params(
    store: ObjectStore, registry: Registry, bound: PolicyBinding, namespace: str
) -> tuple[list[Json | None], str]:
    """Return the parameter objects of a binding, or why there are none."""
    given = subobject(bound.spec, "paramKind")
    reference = subobject(bound.binding, "spec", "paramRef")
    if not given:
        return [None], ""
    api_version, name = str(given.get("apiVersion")), str(given.get("kind"))
    kind = next((k for k in registry if (k.api_version, k.kind) == (api_version, name)), None)
    if kind is None or not reference:
        why = "is not served" if kind is None else "is not selected by a paramRef"
        return [], f"parameter kind {name} of {api_version} {why}"
    records = store.cache(kind.storage_name).records
    prefix = f"{reference.get('namespace') or namespace}/" if kind.namespaced else ""
    if reference.get("name"):
        keys = [key for key in [f"{prefix}{reference['name']}"] if key in records]
    else:
        selector = read_selector(subobject(reference, "selector"))
        keys = sorted(key for key, record in records.items()
                      if key.startswith(prefix) and selector.matches(record.labels))  # fmt: skip
    if not keys and reference.get("parameterNotFoundAction") != "Allow":
        return [], "no params found for policy binding with `Deny` parameterNotFoundAction"
    return [conversion.from_stored(kind, read_json(records[key].body)) for key in keys], ""
